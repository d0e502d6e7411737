"""A worker sends long documents to an index one after the other, and does not abort documents of other writers."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from qa_cluster.documents.stored import IndexedText
from qa_cluster.gears.functions.indexing import batches, parts
from qa_cluster.gears.functions.indexing.failures import Failures
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import document_name
from qa_cluster.scripts.calls import ScriptCall

NAMES = [(document_name(name), "t") for name in ("a", "b", "c")]
PARTS = ((2, b"first"), (1, b"second"))


class Shard:
    """Records the commands for an index, and fails one of them on request."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.errors: dict[str, str] = {}

    def execute_many(self, commands: Sequence[Sequence[Any]], *, keep_errors: bool = False) -> list[Any]:
        replies: list[Any] = []
        for name, *_ in commands:
            if name == "GET":
                replies.append("A text.")
                continue
            if name == "HGET":
                replies.append(None)  # no note
                continue
            self.seen.append(name.removeprefix("QA.INDEX."))
            if name in self.errors:
                assert not keep_errors
                raise GearsError(self.errors[name])
            replies.append(7)
        return replies

    def run_script(self, call: ScriptCall) -> Any:
        self.seen.append(call.script)
        if call.script in self.errors:
            raise GearsError(self.errors[call.script])
        return ["stored"]

    def run_scripts(self, calls: Sequence[ScriptCall]) -> list[Any]:
        return [self.run_script(call) for call in calls]

    def indexed(self, *names: batches.Name) -> dict[batches.Name, Any]:
        context: Any = SimpleNamespace(commands=self, partitions=None)
        portion = {name: batches._Found(None, 7, None) for name in names}
        return batches.Indexer(context, Failures(context.commands))._index_portion(portion, 0)

    def indexing(self, _batch: int, _names: Any, commands: Sequence[Sequence[Any]] = ()) -> list[Any]:
        return self.execute_many(commands, keep_errors=True)


@pytest.fixture
def shard(monkeypatch: pytest.MonkeyPatch) -> Shard:
    made = Shard()
    monkeypatch.setattr(batches, "analysed", lambda *_: IndexedText("s", "a", 3, b"", b"", PARTS))
    return made


def test_each_long_document_is_committed_before_the_next_is_begun(shard: Shard) -> None:
    """An index allows 16 open documents. More open documents would discard each other."""
    assert shard.indexed(*NAMES) == dict.fromkeys(NAMES, "stored")
    assert shard.seen == ["put_document", "BEGIN", "ADD", "ADD", "index_document"] * 3


def test_nothing_stays_open_after_an_error(shard: Shard) -> None:
    shard.errors["index_document"] = "OOM command not allowed"
    outcomes = shard.indexed(NAMES[0])
    assert "OOM" in str(outcomes[NAMES[0]])
    assert shard.seen[-2:] == ["index_document", "ABORT"]


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        ("ERR the document is not open at this place: it was committed, aborted or discarded", False),
        ("ERR the document has 1 sentences so far, not 0", False),
        ("OOM command not allowed when used memory > 'maxmemory'.", True),
    ],
)
def test_the_open_document_of_another_writer_is_not_aborted(shard: Shard, error: str, ours: bool) -> None:
    """A key that is created again reuses its places."""
    shard.errors["QA.INDEX.ADD"] = error
    as_commands: Any = shard
    if ours:
        with pytest.raises(GearsError, match="OOM"):
            parts.send(as_commands, NAMES[0], PARTS, b"")
    else:
        assert parts.send(as_commands, NAMES[0], PARTS, b"") is None
    assert shard.seen == ["BEGIN", "ADD", *(["ABORT"] if ours else [])]
