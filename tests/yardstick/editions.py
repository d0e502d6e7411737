#!/usr/bin/env python3
"""Write the documents of the yardstick as PDF or DOCX: python3 -m tests.yardstick.editions DOCUMENTS OUT FORMAT [PART]

DOCUMENTS is the output folder of fetch.py. The program writes the documents of the questions of PART (dev, final) to
OUT/documents in FORMAT (pdf, docx), and the other documents unchanged. It writes the questions to OUT/questions.jsonl.
Text, headings, lists and code are extracted like in `qa-cluster ingest`, so only the format differs.
"""

import json
import shutil
import sys
from pathlib import Path
from xml.sax.saxutils import escape

from qa_cluster.sources.extract import extract
from tests.unit.sources.pdf_writer import PdfWriter
from tests.unit.sources.test_lossless import docx, par, run

HERE = Path(__file__).resolve().parent
CHARACTERS_OF_A_LINE = 90


def blocks(found):
    """Yield the kind of each block (`heading`, `item`, `code`, `text`), its text and the level of a heading."""
    ends = {section.start: section.path for section in found.sections}
    place = 0
    for part in found.text.split("\n\n"):
        path = ends.get(place)
        if path and path[-1] == part:
            yield "heading", part, len(path)
        elif part == found.title and place == 0:
            yield "heading", part, 0
        elif part.startswith("    "):
            yield "code", part, 0
        else:
            for line in part.split("\n"):
                yield ("item", line.lstrip()[2:], 0) if line.lstrip().startswith("- ") else ("text", line, 0)
        place += len(part) + 2


def pdf_of(found):
    """The bytes of a PDF with these blocks. Characters beyond Windows-1252 become question marks."""
    pdf = PdfWriter(title=found.title)
    for kind, text, level in blocks(found):
        shown = text.encode("cp1252", "replace").decode("cp1252")
        if kind == "heading":
            pdf.heading(shown, max(11, 20 - 2 * level))
        elif kind == "code":
            for line in shown.split("\n"):
                pdf.line(line.strip(), "F3", 8, x=72 + 4.8 * (len(line) - len(line.lstrip())))
        elif kind == "item":
            pdf.paragraph(f"\u2022 {shown}", CHARACTERS_OF_A_LINE, x=82, gap=2)
        else:
            pdf.paragraph(shown, CHARACTERS_OF_A_LINE)
    return pdf.written()


def docx_of(found):
    """The bytes of a DOCX file with these blocks."""
    parts = []
    for kind, text, level in blocks(found):
        style = f"Heading{min(level, 6)}" if level else "Title" if kind == "heading" else ""
        about = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
        parts += [par(about, run(escape(line))) for line in text.split("\n")]
    return docx("".join(parts))


WRITERS = {"pdf": pdf_of, "docx": docx_of}


def main(documents, out, form, part="dev"):
    lines = (HERE / f"questions-{part}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    asked = {row["document"] for row in rows if row["answers"]}
    folder = out / "documents"
    shutil.copytree(documents, folder)
    for name in sorted(asked):
        path = folder / name
        path.with_name(f"{path.name}.{form}").write_bytes(WRITERS[form](extract(path.read_bytes(), path.name)[1]))
        path.unlink()
    with open(out / "questions.jsonl", "w", encoding="utf-8") as questions:
        for row in rows:
            if row["answers"]:
                row |= {"document": f"{row['document']}.{form}", "kind": row["format"], "format": form}
            questions.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f"{len(asked)} documents as {form}")


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5) or sys.argv[3] not in WRITERS:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
