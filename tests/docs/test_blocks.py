"""Every code block of README and docs that has no mark `not run` runs unchanged and prints what it shows."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator

import pytest

from .blocks import DOCUMENTS, RUN, Block, agrees, blocks, document_name, faults, steps
from .walkthrough import Walkthrough

BLOCKS = {document_name(path): blocks(document_name(path), path.read_text()) for path in DOCUMENTS}
RUNNABLE = {
    name: [block for block in found if block.info in RUN and not block.not_run] for name, found in BLOCKS.items()
}
# Programs that a reader of the documents has and a test environment may lack.
PROGRAMS = ("curl", "make", "redis-cli", "redis-server")


@pytest.fixture(scope="module")
def walkthrough(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walkthrough]:
    """One folder and one cluster for all documents, in the order in which they are read: README first."""
    reader = Walkthrough(tmp_path_factory.mktemp("reader"))
    yield reader
    reader.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("document", [name for name, found in RUNNABLE.items() if found])
def test_blocks_run(walkthrough: Walkthrough, document: str) -> None:
    """Blocks that name a program which is not installed are left out."""
    left_out = Counter[str]()
    for block in RUNNABLE[document]:
        lacking = missing_program(block.text)
        if lacking:
            left_out[lacking] += 1
        else:
            walkthrough.run(block)
    if left_out:
        pytest.skip(", ".join(f"{program} is not installed" for program in left_out) + ": the other blocks have run")


def missing_program(text: str) -> str:
    """A program that a block names and this machine lacks; empty if this machine has all."""
    named = (program for program in PROGRAMS if re.search(rf"(?<![\w./-]){program}(?![\w-])", text))
    return next((program for program in named if shutil.which(program) is None), "")


def test_a_missing_program_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None if program == "redis-server" else f"/bin/{program}")
    assert missing_program("$ true\n$ redis-server --version") == "redis-server"
    assert missing_program("$ qa-cluster up --server redis-server") == "redis-server"
    assert missing_program("$ redis-cli PING") == missing_program("$ redis-server-old") == ""


def test_every_block_is_run_or_marked_and_json_is_json() -> None:
    found = [block for blocks_of_one in BLOCKS.values() for block in blocks_of_one]
    assert {block.place: fault for block in found if (fault := faults(block))} == {}
    for block in found:
        if block.info == "json" and not block.not_run:
            assert json.loads(block.text) is not None, block.place
    assert len(RUNNABLE["README.md"]) >= 5


def block(info: str, text: str, not_run: str = "") -> Block:
    return Block("planted.md", 1, info, text, not_run)


def test_planted_blocks_are_found() -> None:
    text = "a\n<!-- not run: it takes a day -->\n```console\n$ make soak\n```\n\n```python\n1 / 0\n```\n"
    marked, other = blocks("planted.md", text)
    assert (marked.not_run, marked.text, other.line, other.not_run) == ("it takes a day", "$ make soak", 7, "")
    assert (faults(marked), faults(other)) == ("", "")
    for info, inside in (("", "$ true"), ("sh", "true"), ("console", "true"), ("pycon", "1 + 1")):
        assert faults(block(info, inside))
        assert not faults(block(info, inside, "a reason"))
    with pytest.raises(ValueError, match=r"planted.md:1: the block does not end"):
        blocks("planted.md", "```text\n")


def test_planted_faults_fail(walkthrough: Walkthrough) -> None:
    walkthrough.run(block("console", "$ echo a \\\n  b\na b"))
    for info, inside in (
        ("console", "$ false"),
        ("console", "$ echo 1 document stored\n1 document skipped"),
        ("python", "1 / 0"),
        ("pycon", ">>> 1 + 1\n3"),
    ):
        with pytest.raises(AssertionError, match=r"planted.md:1"):
            walkthrough.run(block(info, inside))


def test_steps_separate_commands_from_shown_output() -> None:
    assert [(step.command, step.shown) for step in steps("$ a \\\n  b\nc\nd\n$ e")] == [
        ("a \\\n  b", "c\nd"),
        ("e", ""),
    ]


def test_the_shown_part_of_a_table_is_in_the_table() -> None:
    table = " name   ms\n ──────────\n ada   1.5\n bob   2.5\n"
    assert agrees(" name ms\n ───\n ada 9\n ...", table)
    assert not agrees(" name ms\n ───\n eve 9\n ...", table)
