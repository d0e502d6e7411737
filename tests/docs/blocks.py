"""The fenced blocks of the documents, and their contents.

A block's info string says what it is: ``console`` (lines after ``$`` are commands, the others their output),
``python`` (a program), ``pycon`` (a session, as doctest reads it), ``json`` and ``text`` (nothing to run). A comment
``<!-- not run: reason -->`` on the line above leaves a block out.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
RUN = frozenset({"console", "python", "pycon"})
KNOWN = RUN | {"json", "text"}

_NOT_RUN = re.compile(r"<!-- not run: (\S.*) -->")
# Numbers, and ids of shards.
_NUMBER = re.compile(r"\b[0-9a-f]{8}\b|\d+(?:[.,]\d+)*")
_RULE = "───"


def document_name(path: Path) -> str:
    """A document's name in tests: its path below docs/, or below the checkout for other files.

    >>> [document_name(ROOT / name) for name in ("README.md", "docs/design/keys.md", "docs/README.md")]
    ['README.md', 'design/keys.md', 'docs/README.md']
    """
    name = str(path.relative_to(ROOT))
    return name if name == "docs/README.md" else name.removeprefix("docs/")


@dataclass(frozen=True)
class Block:
    """One fenced block. `not_run` is the reason in its mark; empty without a mark."""

    document: str
    line: int
    info: str
    text: str
    not_run: str

    @property
    def place(self) -> str:
        """The position of the block, for messages."""
        return f"{self.document}:{self.line}"


@dataclass(frozen=True)
class Step:
    """A command of a console block and the part of its output that the block shows."""

    command: str
    shown: str


def blocks(document: str, text: str) -> list[Block]:
    """The fenced blocks of a document."""
    found: list[Block] = []
    lines = text.split("\n")
    opened: int | None = None
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            continue
        if opened is None:
            opened = number
            continue
        mark = _NOT_RUN.fullmatch(lines[opened - 1].strip()) if opened else None
        info = lines[opened].strip().removeprefix("```")
        inside = dedent("\n".join(lines[opened + 1 : number]))
        found.append(Block(document, opened + 1, info, inside, mark[1] if mark else ""))
        opened = None
    if opened is not None:
        raise ValueError(f"{document}:{opened + 1}: the block does not end")
    return found


def faults(block: Block) -> str:
    """The reasons why tests can neither run a block nor leave it out; empty without reasons."""
    if block.not_run:
        return ""
    if block.info not in KNOWN:
        return f"its info string is {block.info!r}, must be one of {', '.join(sorted(KNOWN))}"
    if block.info == "console" and not block.text.startswith("$ "):
        return "it does not begin with a command"
    if block.info == "pycon" and not block.text.startswith(">>> "):
        return "it does not begin with a prompt"
    return ""


def steps(text: str) -> list[Step]:
    """The commands of a console block, each with the output shown below it.

    >>> steps("$ echo a \\\\\\n  b\\na b\\n$ true")
    [Step(command='echo a \\\\\\n  b', shown='a b'), Step(command='true', shown='')]
    """
    found: list[Step] = []
    continued = False
    for line in text.split("\n"):
        if line.startswith("$ "):
            found.append(Step(line[2:], ""))
        elif continued:
            found[-1] = Step(f"{found[-1].command}\n{line}", "")
        else:
            last = found[-1]
            found[-1] = Step(last.command, f"{last.shown}\n{line}" if last.shown else line)
        continued = line.endswith("\\") and not found[-1].shown
    return found


def agrees(shown: str, printed: str) -> bool:
    """Whether the output that a block shows agrees with the command's real output.

    Numbers and white space may differ and ``...`` stands for anything; the rest must come in this order. The width of
    the terminal breaks the cells of a table, so only the words of a table count.

    >>> agrees("1 document ... in 0.5 s", "12 document(s)\\nstored in 3 s")
    True
    >>> agrees("2 documents stored", "2 documents skipped")
    False
    """
    if _RULE in shown:
        return not Counter(_plain(shown.replace("...", "")).split()) - Counter(_plain(printed).split())
    rest = "".join(_plain(printed).split())
    for part in shown.split("..."):
        wanted = "".join(_plain(part).split())
        if wanted not in rest:
            return False
        rest = rest[rest.index(wanted) + len(wanted) :]
    return True


def _plain(text: str) -> str:
    return _NUMBER.sub("0", re.sub("─+", "─", text))
