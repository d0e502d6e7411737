"""Docstrings, comments, messages and documents use the usual words of the field.

`PHRASES` lists phrases that readers stumble over. The test prints each finding as ``file:line: phrase``.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.contract.prose import prose
from tests.harness.programs import ROOT

# Each comment says what to write instead.
PHRASES = (
    # the noun, or the active voice: no document, each client, the client that
    *("nobody", "everybody", "somebody", "no one", "whoever", "whichever", "whomever", "whom"),
    *("that one", "such a one", "that which", "those which", "one which", "no such thing", "ours", "theirs"),
    *("is that of", "as that of", "is that which", "than that of", "what is there", "what it is of"),
    # has no, is missing, is unset, is not
    *("is none", "are none", "be none", "was none", "were none"),
    # again, rebuild, reload, retry
    "anew",
    # continue, resume, start
    *("goes on", "go on", "going on", "went on", "lets go", "let it go", "takes up", "take up", "taken up"),
    # has arrived, was moved
    *("has come", "have come", "had come", "comes to rest", "come to rest", "at rest again"),
    # scan, poll, check
    *("looked through", "look through", "looks through", "looks at all", "a look at", "another look"),
    # migrating, in flight
    *("on its way", "on their way"),
    # learns, is notified
    *("hears of", "hear of", "heard of", "knows of", "know of"),
    # pending documents, backlog
    *("what waits", "that waits there", "homeless"),
    # queue, capacity
    *("lane", "lanes"),
    # next to, alongside, while
    "beside",
    # starts with
    *("begins with", "begin with"),
    # abort
    "abortion",
    # but, still, always, automatically, sometimes, forever
    *("all the same", "as ever", "be it", "of its own accord", "of their own accord", "now and then", "for ever"),
)


def _pattern(phrase: str, gap: str = r"\s+") -> str:
    words = gap.join(phrase.split())
    # "so that one client can" is English.
    if phrase == "that one":
        words = rf"(?<!\bso ){words}"
    # ``is None`` is Python.
    return rf"(?-i:{words})" if "none" in phrase else words


# An option such as ``--beside`` is a name.
_PHRASE = re.compile(rf"(?<!-)\b(?:{'|'.join(map(_pattern, sorted(PHRASES, key=len, reverse=True)))})\b", re.IGNORECASE)
# What stands between two words of a phrase in a file: white space, comment signs, ``\\n``, and ends of string literals.
_GAP = r"(?:[^\w]|\\n|\b[bfru]{1,2}(?=[\"']))+"
# Finds the files that can have a phrase. Only these files are masked, because that takes most of the time. A pattern of
# lower case on a text of lower case is ten times as fast as a pattern that ignores case.
_SUSPECT = re.compile("|".join(_pattern(phrase, _GAP) for phrase in PHRASES))
# Texts that must stay: path -> phrases, and why.
EXCEPTIONS: dict[str, tuple[frozenset[str], str]] = {
    "qa_cluster/ranking/terms.py": (frozenset({"whom"}), "a stop word"),
    "qa_cluster/reading/words.py": (frozenset({"whom"}), "a word that only joins others"),
}
# String literals of these folders are data: questions, documents, asserted texts.
DATA = ("tests/",)
# Files without prose of this project, and this file.
LEFT_OUT = ("LICENSE", "tests/contract/test_words.py")


def findings(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the listed phrases in the prose of a file, with their lines."""
    if not _SUSPECT.search(text.replace("None", "").lower()):
        return
    masked = prose(name, text, messages=not name.startswith(DATA))
    for found in _PHRASE.finditer(masked):
        yield masked.count("\n", 0, found.start()) + 1, " ".join(found[0].split())


def _findings_of_files() -> Iterator[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        path = ROOT / name
        if name in LEFT_OUT or not path.is_file() or path.suffix in {".gz", ".onnx", ".png", ".svg"}:
            continue
        allowed, _ = EXCEPTIONS.get(name, (frozenset(), ""))
        for line, phrase in findings(name, path.read_text()):
            if phrase.lower() not in allowed:
                yield f"{name}:{line}: {phrase}"


def test_no_file_has_a_listed_phrase() -> None:
    assert "\n".join(_findings_of_files()) == ""


def test_exceptions_are_needed() -> None:
    for name, (phrases, why) in EXCEPTIONS.items():
        assert why and {phrase.lower() for _, phrase in findings(name, (ROOT / name).read_text())} >= phrases


@pytest.mark.parametrize(
    ("name", "text", "line", "phrase"),
    [
        ("a.py", '"""Says it\n\nto Nobody."""\n', 3, "Nobody"),
        ("a.py", "x = 1  # it goes\n       # on here\n", 1, "goes on"),
        ("a.py", 'raise ValueError("the key "\n    f"that {x} is "\n    "none")\n', 2, "is none"),
        ("tests/a.py", 'def f():\n    """Made anew."""\n', 2, "anew"),
        ("a.lua", "local x = 1\n-- the document is homeless\n", 2, "homeless"),
        ("a.c", "/* A queue:\n * that\n * one */\nint x;", 2, "that one"),
        ("a.c", 'error("no text: be "\n      "it late");', 1, "be it"),
        ("a.js", "const x = `no such\n thing`;", 1, "no such thing"),
        ("a.md", "A slot\non its\nway moves.\n", 2, "on its way"),
        ("a.yaml", "a: 1\n# As ever.\n", 2, "As ever"),
    ],
)
def test_planted_phrases_are_found(name: str, text: str, line: int, phrase: str) -> None:
    assert list(findings(name, text)) == [(line, phrase)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "nobody = anew(that, one)\nif x is None: pass\n# `nobody` and ``is none`` are code; x is None\n"),
        ("a.py", "x = 1  # the\nnobody = 2\n# lanes_of, plane\n"),
        ("a.py", 'user = "nobody"\n'),
        ("a.md", "So that one client can ask: that it is None.\n"),
        ("tests/a.py", 'question = "Who is nobody to Ulysses?"\n'),
        ("a.c", "int goes; /* goes */ on(); /* on */"),
        ("a.md", "Run `nobody` as the user.\n"),
    ],
)
def test_code_and_names_are_not_prose(name: str, text: str) -> None:
    assert list(findings(name, text)) == []
