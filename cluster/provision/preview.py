"""`qa-cluster ingest --show`: prints the documents of a file without storing them."""

from __future__ import annotations

from pathlib import Path

from qa_cluster.documents.corpus import read_documents
from qa_cluster.documents.source_map import read_map
from qa_cluster.sources.process.extractor import Extractor
from qa_cluster.types import Document

from ..terminal import console


def preview(file: Path, extractor: Extractor | None, max_bytes: int) -> None:
    """Print the documents of a file: the title, then each section with its path of headings and its line or page.
    Without an `extractor` (--raw), the text is unchanged.

    Then print remarks about guessed, replaced and omitted text to standard error.
    """
    for document in read_documents([file], max_bytes=max_bytes, extractor=extractor):
        _show(document)
    for _, remark in extractor.remarks if extractor is not None else ():
        console.notice(remark)


def _show(document: Document) -> None:
    source = read_map(document.metadata)
    about = [document.id, *([source.format] if source.format else []), console.counted(len(document.text), "character")]
    console.say(f"{document.title}  [{', '.join(about)}]")
    starts = [*source.starts, len(document.text)]
    if starts[0] > 0:
        console.say(f"\n{document.text[: starts[0]].strip()}")
    for start, end, path in zip(starts, starts[1:], source.paths, strict=False):
        number = source.number_at(start)
        position = f", {source.unit} {number}" if number is not None else ""
        console.say(f"\n## {' > '.join(path) or '(no section)'}{position}\n\n{document.text[start:end].strip()}")
