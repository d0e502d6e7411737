#!/usr/bin/env python3
"""Check the yardstick against its documents: python3 check.py DOCUMENTS

DOCUMENTS is the output folder of fetch.py. The document must contain the first accepted answer. The other accepted
answers are other spellings. The exit status is 1 if anything is wrong.
"""

import html
import json
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
PARTS = ("dev", "final")
ANSWERED, UNANSWERED, MOST_OF_ONE, NGRAM = 205, 62, 8, 8
STYLES = {"full", "casual", "keyword"}
FIELDS = {"question", "answers", "document", "kind", "style", "format"}


def format_of(name, source):
    """The format of a document, by its name."""
    if "format" in source:
        return source["format"]
    suffix = name.rsplit(".", 1)[-1].lower() if "." in name else ""
    if suffix in ("rst", "md", "html"):
        return suffix
    return "roff" if re.fullmatch(r"[1-8]", suffix) and not re.search(r"\.\d+\.\d$", name) else "text"


def plain(text, form):
    """The text without simple markup and with single spaces."""
    if form == "html":
        text = re.sub(r"(?is)<(script|style|head)\b.*?</\1>", " ", text)
        text = re.sub(r"(?i)</?(p|div|li|dt|dd|tr|td|th|h\d|br|pre|ul|ol|dl|table)\b[^>]*>", " ", text)
        text = html.unescape(re.sub(r"<[^>]*>", "", text)).replace("¶", "")
    elif form == "roff":
        text = re.sub(r'(?m)^\.\\".*$', "", text)
        text = re.sub(r"(?m)^[.']\s*[A-Za-z]{1,3}\b[ \t]*", "", text)
        text = re.sub(r"\bFl (?=[A-Za-z0-9-])", "-", text)
        text = re.sub(r"\\f(\[[^]]*\]|\(..|.)|\\s[-+]?\d|\\[&|^/,:%)c]", "", text)
        text = re.sub(r"\\\(aq|\\\(cq|\\\[aq\]|\\'", "'", text)
        text = re.sub(r"\\\(dq|\\\(l\w|\\\(r\w|\\\*\(\w\w", '"', text)
        text = (
            text.replace("\\-", "-").replace("\\e", "\\").replace("\\ ", " ").replace("\\~", " ").replace("\\(en", "-")
        )
        text = re.sub(r'(?m)^"|"$', "", text)
    else:
        text = html.unescape(re.sub(r":[\w:+-]+:(?=`)", "", text)) if form == "rst" else html.unescape(text)
        text = re.sub(r"`([^`<]*?)\s*<[^>`]*>`_*", r"\1", text)
        text = re.sub(r"\[([^]]*)\](\([^)]*\)|\[[^]]*\])", r"\1", text)
        text = re.sub(r"\{[\w:-]+\}(?=`)", "", text)
        text = re.sub(r"`_*|\*\*|(?<!\w)\*(?=\w)|(?<=\w)\*(?!\w)", "", text)
    return " ".join(text.split())


def words(text):
    return re.findall(r"\w+", text.lower())


def ngrams(listed):
    return {tuple(listed[at : at + NGRAM]) for at in range(len(listed) - NGRAM + 1)}


def read_documents(folder, sources):
    """The plain text and the format of every document, by "source/file"."""
    read = {}
    for source in sources:
        place = folder / source["name"]
        if not place.is_dir():
            sys.exit(f"{place} is missing: run fetch.py first")
        for path in sorted(place.iterdir()):
            if path.name == ".complete":
                continue
            form = format_of(path.name, source)
            read[f"{source['name']}/{path.name}"] = (
                plain(path.read_text(encoding="utf-8", errors="replace"), form),
                form,
            )
    return read


def faults_of(row, documents, part_of, part):
    """The faults of one question, without comparison to other questions."""
    if row.keys() - FIELDS or not {"question", "answers", "kind", "style"} <= row.keys():
        return [f"its fields are {', '.join(row)}"]
    faults = [] if row["style"] in STYLES else [f"style {row['style']}"]
    if not row["answers"]:
        return faults + (["it has a document but no answers"] if "document" in row else [])
    if row.get("document") not in documents:
        return [*faults, f"there is no document {row.get('document')}"]
    text, form = documents[row["document"]]
    if row["format"] != form:
        faults.append(f"the format of its document is {form}")
    if part_of[row["document"].split("/")[0]] != part:
        faults.append(f"its document is not one of {part}")
    if len(set(row["answers"])) != len(row["answers"]):
        faults.append("an answer occurs twice")
    lowered = text.lower()
    if not stands(" ".join(row["answers"][0].lower().split()), lowered):
        faults.append(f"{row['document']} does not contain its first answer: {row['answers'][0]}")
    if len(words(row["answers"][0])) > 16:
        faults.append("its first answer is longer than a clause")
    return faults


def stands(answer, text):
    """Whether the text contains the answer as whole words."""
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text) is not None


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sources = tomllib.loads((HERE / "sources.toml").read_text(encoding="utf-8"))["source"]
    documents = read_documents(Path(sys.argv[1]), sources)
    part_of = {source["name"]: source["part"] for source in sources}
    packages = Counter((source.get("debian") or source["pypi"]).lower() for source in sources)
    faults = [f"sources.toml: the package {name} occurs twice" for name, count in packages.items() if count > 1]
    files = {part: (HERE / f"questions-{part}.jsonl").read_text(encoding="utf-8") for part in PARTS}
    rows = {part: [json.loads(line) for line in text.splitlines()] for part, text in files.items()}
    seen, wanted = {}, {}
    for part, listed in rows.items():
        for number, row in enumerate(listed, 1):
            place = f"{part}:{number}"
            faults += [f"{place}: {fault}" for fault in faults_of(row, documents, part_of, part)]
            asked = words(row["question"])
            if seen.setdefault(tuple(asked), place) != place:
                faults.append(f"{place}: the same question as {seen[tuple(asked)]}")
            for gram in ngrams(asked):
                wanted.setdefault(gram, set()).add(place)
        answered = [row for row in listed if row["answers"]]
        for name, count in Counter(row["document"] for row in answered).items():
            if count > MOST_OF_ONE:
                faults.append(f"{part}: {count} questions are about {name}")
        if len(answered) < ANSWERED or len(listed) - len(answered) < UNANSWERED:
            faults.append(f"{part}: {len(answered)} questions with answers and {len(listed) - len(answered)} without")
        print(
            f"{part}: {len(answered)} with answers, {len(listed) - len(answered)} without, about "
            f"{len({row['document'] for row in answered})} documents of "
            f"{len({row['document'].split('/')[0] for row in answered})} packages"
        )
        for field in ("kind", "style", "format"):
            counts = Counter(row[field] for row in listed if field in row)
            print(f"  {field}: " + ", ".join(f"{name} {count}" for name, count in counts.most_common()))
    for name, (text, _) in documents.items():
        for gram in ngrams(words(text)) & wanted.keys():
            faults.append(f"{', '.join(sorted(wanted[gram]))}: {NGRAM} words of {name}: {' '.join(gram)}")
    counts = Counter(part_of[name.split("/")[0]] for name in documents)
    print("documents: " + ", ".join(f"{part} {count}" for part, count in counts.items()))
    print("\n".join(faults) if faults else "no faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
