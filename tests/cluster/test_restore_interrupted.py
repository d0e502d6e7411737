"""Killed, concurrent and repeated restores end with the contents of the backup."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from qa_cluster import keys
from qa_cluster.clients.async_cluster_client import AsyncClusterClient
from qa_cluster.cluster.backup import document_saving, restore_lock
from qa_cluster.cluster.backup.manifest import BackupManifest
from qa_cluster.cluster.backup.restoring import Conflict, RestoreOutcome
from qa_cluster.cluster.commands.backups.restore import _run
from qa_cluster.cluster.nodes.connect import cluster_client, shards_of
from qa_cluster.cluster.nodes.node import command
from tests.cluster.test_backup import Site, backup, pairs, same, site, source
from tests.harness.polling import eventually

__all__ = ["backup", "source"]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from site(tmp_path_factory, "target", "", 2)


def stock(qa: Site) -> Any:
    """A stock client of the cluster, as a context manager."""
    return cluster_client(qa.settings, qa.settings.cluster_url)


def on_first(qa: Site, *words: str) -> Any:
    """Send a command to the first shard and return the reply."""
    shards = shards_of(qa.settings, qa.settings.cluster_url)
    try:
        return command(shards[0][1], *words)
    finally:
        for _, client in shards:
            client.close()


def incomplete(qa: Site) -> set[str]:
    """The API keys whose record is missing in at least one list."""

    async def ask() -> set[str]:
        async with AsyncClusterClient(qa.settings) as client:
            return await client.engine.api_keys.incomplete()

    return asyncio.run(ask())


def lists(qa: Site) -> list[str]:
    """The names of the lists of API keys."""
    return [keys.api_keys_key(tag) for tag in keys.partition_tags(int(qa.status()["partitions"]))]


def test_after_several_kills_a_restore_completes_the_contents_of_the_backup(
    source: Site, backup: Path, target: Site, tmp_path: Path
) -> None:
    names = lists(target)
    log = tmp_path / "audit.jsonl"
    words = ("--set", f"audit_log={log}", "restore", str(backup))
    with stock(target) as client:
        begun: list[Callable[[], Any]] = [
            lambda: client.get(keys.RESTORING_KEY),
            lambda: any(client.hlen(name) for name in names),
            lambda: next(client.scan_iter(match="bert-qa*mine*", count=1000), None),
            lambda: next(client.scan_iter(match="paragraphs:many%/*", count=1000), None),
            target.registrations,
        ]
        for has_begun in begun:
            running = target.start(*words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            try:
                eventually(lambda: running.poll() is not None or has_begun(), 120, pause=0.001)  # noqa: B023
            finally:
                running.kill()
                running.communicate()
    told = target(*words)
    assert "not restored" not in told.stderr
    same(source, target)
    assert incomplete(target) == set()
    events = [(entry["event"], entry.get("complete")) for entry in map(json.loads, log.read_text().splitlines())]
    assert events[-2:] == [("restore.begin", None), ("restore", True)]
    assert ("restore", False) not in events and len(events) >= 4, "a killed restore logs only its start"


def test_partly_stored_contents_are_completed(source: Site, backup: Path, target: Site) -> None:
    target("restore", str(backup), "--on-conflict", "replace")
    with stock(target) as client:
        name = lists(target)[1]
        (key, *_) = client.hkeys(name)
        client.hdel(name, key)
    assert incomplete(target) == {key.decode()}
    (stream,) = [row["id"] for row in map(pairs, on_first(target, "RG.DUMPREGISTRATIONS")) if "Stream" in row["reader"]]
    on_first(target, "RG.UNPAUSEREGISTRATIONS", stream)
    target("restore", str(backup))
    assert incomplete(target) == set()
    same(source, target)


def test_a_cluster_allows_one_restore_at_a_time(backup: Path, target: Site) -> None:
    def caught() -> tuple[Any, ...]:
        """Stop a restore while it runs; return it and its key, or nothing if it ended before."""
        running = target.start("restore", str(backup), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with stock(target) as client:
            eventually(lambda: client.get(keys.RESTORING_KEY) or running.poll() is not None, pause=0.001)
            running.send_signal(signal.SIGSTOP)
            if client.pexpire(keys.RESTORING_KEY, 600_000):  # a stopped restore does not renew its key
                return running, json.loads(client.get(keys.RESTORING_KEY))
        running.send_signal(signal.SIGCONT)
        assert running.wait(300) == 0
        return ()

    running, held = eventually(caught)
    try:
        refused = target("restore", str(backup), code=1).stderr
        assert f"another restore is running, by {held['user']} on {held['host']} (process {running.pid})" in refused
        assert "nothing was restored; repeat the command when it has ended" in refused
    finally:
        running.send_signal(signal.SIGCONT)
    assert running.wait(300) == 0
    target("restore", str(backup))
    with stock(target) as client:
        assert client.get(keys.RESTORING_KEY) is None


def test_a_restore_waits_for_a_lock_of_another_machine_that_may_expire(
    backup: Path, target: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = json.dumps({"user": "ada", "host": "b.example", "pid": 7, "since": "now", "system": "x", "started": "1"})
    over = threading.Event()
    acquire = restore_lock.RestoreLock._acquire
    with stock(target) as client:

        def acquire_late(lock: restore_lock.RestoreLock) -> None:
            """Set the key just before the command checks it. During a slow start, the key could expire."""
            client.set(keys.RESTORING_KEY, other, px=5000)
            acquire(lock)

        with monkeypatch.context() as patched:
            patched.setattr(restore_lock.RestoreLock, "_acquire", acquire_late)
            told = target("restore", str(backup)).stderr
        assert "by ada on b.example (process 7), since now: waiting to see whether it is still running" in told

        def renew() -> None:
            while not over.wait(0.2):
                client.set(keys.RESTORING_KEY, other, px=60_000)

        renewing = threading.Thread(target=renew)
        renewing.start()
        try:
            eventually(lambda: client.get(keys.RESTORING_KEY))
            assert "by ada on b.example" in target("restore", str(backup), code=1).stderr
        finally:
            over.set()
            renewing.join()
        client.set(keys.RESTORING_KEY, "something else")  # without a TTL
        assert "another restore is running: nothing was restored" in target("restore", str(backup), code=1).stderr
        client.delete(keys.RESTORING_KEY)


def test_a_restore_that_lost_its_lock_stops(target: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_lock, "RENEW_SECONDS", 0.05)
    with stock(target) as client:
        with restore_lock.RestoreLock(target.settings) as lock:
            lock.check()
            client.delete(keys.RESTORING_KEY)  # a failover may lose the key
            eventually(lambda: client.get(keys.RESTORING_KEY))
            lock.check()
            client.set(keys.RESTORING_KEY, "another one")
            eventually(lambda: lock._lost)
            with pytest.raises(restore_lock.OtherRestore, match="another restore is running; this restore"):
                lock.check()
        assert client.get(keys.RESTORING_KEY) == b"another one", "a restore does not delete the key of another restore"
        client.delete(keys.RESTORING_KEY)


def test_too_many_api_keys_are_refused_before_anything_is_written(
    backup: Path, target: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    target("restore", str(backup), "--on-conflict", "replace")
    target("keys", "create", "own", "--scope", "ask")
    monkeypatch.setattr("qa_cluster.cluster.backup.restoring.MAX_KEYS", 3)
    before = target.everything()
    with target.client() as client:
        client.put_document("n1", "Changed.", collection="many")
    refused = target("restore", str(backup), "--on-conflict", "replace", code=1).stderr
    assert "the backup has 3 API keys and the cluster 1 other valid keys, but the limit is 3" in refused
    assert target.everything() != before
    monkeypatch.undo()
    target("restore", str(backup), "--on-conflict", "replace")
    assert target.everything() == before


def test_small_pages_and_steps_save_all_documents(
    source: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("_PAGE", 3), ("_SCAN_KEYS", 2), ("_NAMES", 2), ("READ_BYTES", 200)):
        monkeypatch.setattr(document_saving, name, size)
    source("backup", str(tmp_path / "backup"))
    manifest = BackupManifest.load(tmp_path / "backup")
    assert manifest.counts["documents"] == len(source.everything())
    assert sum(manifest.files[name].lines for name in manifest.document_files) == len(source.everything())


class _Ends:
    """A fake restore that writes keys and documents, and then returns an outcome or raises an error."""

    def __init__(self, error: BaseException | None, failed: dict[str, str], *, begins: bool = True) -> None:
        self.outcome = RestoreOutcome(failed=failed, api_keys=2)
        self.error = error
        self._begins = begins

    def run(self, on_begin: Callable[[], None]) -> RestoreOutcome:
        if self._begins:
            on_begin()
            self.outcome.documents.new = 5
        if self.error is not None:
            raise self.error
        return self.outcome


class _Notes:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def note(self, event: str, **what: Any) -> None:
        self.lines.append((event, what))


@pytest.mark.parametrize(
    ("ends", "complete", "said"),
    [
        (_Ends(None, {}), True, ""),
        (_Ends(None, {"functions x": "ERR"}), False, ""),
        (_Ends(Conflict("shard gone"), {}), False, "the restore is incomplete: restored contents stay"),
        (_Ends(KeyboardInterrupt(), {}), False, "interrupted: restored contents stay"),
        (_Ends(typer.Exit(1), {}), False, "the restore is incomplete"),
    ],
)
def test_the_audit_log_has_the_counts_of_a_restore_and_whether_it_is_complete(
    ends: Any, complete: bool, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log: Any = _Notes()
    try:
        _run(ends, log, {"folder": "x"})
    except (Conflict, KeyboardInterrupt, typer.Exit) as error:
        assert error is ends.error
    begin, end = log.lines
    assert begin == ("restore.begin", {"folder": "x"})
    numbers = {"new": 5, "changed": 0, "api_keys": 2, "models": 0, "functions": 0}
    assert end == ("restore", {"folder": "x", **numbers, "complete": complete})
    assert said in capsys.readouterr().err


def test_the_audit_log_omits_a_restore_that_wrote_nothing() -> None:
    log: Any = _Notes()
    ends: Any = _Ends(Conflict("differs"), {}, begins=False)
    with pytest.raises(Conflict):
        _run(ends, log, {})
    assert log.lines == []
