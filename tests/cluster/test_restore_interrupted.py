"""Concurrent, interrupted and repeated restores end with the contents of the backup."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from qa_cluster import keys
from qa_cluster.cluster.backup import document_saving, restore_lock
from qa_cluster.cluster.backup.manifest import BackupManifest
from qa_cluster.cluster.backup.restoring import Conflict, RestoreOutcome
from qa_cluster.cluster.commands.backups.restore import _run
from tests.cluster.sites import Site, incomplete, lists, pairs, same
from tests.harness.polling import eventually

pytestmark = pytest.mark.timeout(900)


def test_partly_stored_contents_are_completed(source: Site, backup: Path, valkey_site: Site) -> None:
    valkey_site("restore", str(backup), "--on-conflict", "replace")
    with valkey_site.stock() as client:
        name = lists(valkey_site)[1]
        (key, *_) = client.hkeys(name)
        client.hdel(name, key)
    assert incomplete(valkey_site) == {key.decode()}
    (stream,) = [
        row["id"] for row in map(pairs, valkey_site.on_first("RG.DUMPREGISTRATIONS")) if "Stream" in row["reader"]
    ]
    valkey_site.on_first("RG.UNPAUSEREGISTRATIONS", stream)
    valkey_site("restore", str(backup))
    assert incomplete(valkey_site) == set()
    same(source, valkey_site)


def test_a_cluster_allows_one_restore_at_a_time(backup: Path, valkey_site: Site) -> None:
    def caught() -> tuple[Any, ...]:
        """Stop a restore while it runs; return it and its key, or nothing if it ended before."""
        running = valkey_site.start("restore", str(backup), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with valkey_site.stock() as client:
            eventually(lambda: client.get(keys.RESTORING_KEY) or running.poll() is not None, pause=0.001)
            running.send_signal(signal.SIGSTOP)
            if client.pexpire(keys.RESTORING_KEY, 600_000):  # a stopped restore does not renew its key
                return running, json.loads(client.get(keys.RESTORING_KEY))
        running.send_signal(signal.SIGCONT)
        assert running.wait(300) == 0
        return ()

    running, held = eventually(caught)
    try:
        refused = valkey_site("restore", str(backup), code=1).stderr
        assert f"another restore is running, by {held['user']} on {held['host']} (process {running.pid})" in refused
        assert "nothing was restored; repeat the command when it has ended" in refused
    finally:
        running.send_signal(signal.SIGCONT)
    assert running.wait(300) == 0
    valkey_site("restore", str(backup))
    with valkey_site.stock() as client:
        assert client.get(keys.RESTORING_KEY) is None


def test_a_restore_waits_for_a_lock_of_another_machine_that_may_expire(
    backup: Path, valkey_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = json.dumps({"user": "ada", "host": "b.example", "pid": 7, "since": "now", "system": "x", "started": "1"})
    over = threading.Event()
    acquire = restore_lock.RestoreLock._acquire
    with valkey_site.stock() as client:

        def acquire_late(lock: restore_lock.RestoreLock) -> None:
            """Set the key just before the command checks it. During a slow start, the key could expire."""
            client.set(keys.RESTORING_KEY, other, px=5000)
            acquire(lock)

        with monkeypatch.context() as patched:
            patched.setattr(restore_lock.RestoreLock, "_acquire", acquire_late)
            told = valkey_site("restore", str(backup)).stderr
        assert "by ada on b.example (process 7), since now: waiting to see whether it is still running" in told

        def renew() -> None:
            while not over.wait(0.2):
                client.set(keys.RESTORING_KEY, other, px=60_000)

        renewing = threading.Thread(target=renew)
        renewing.start()
        try:
            eventually(lambda: client.get(keys.RESTORING_KEY))
            assert "by ada on b.example" in valkey_site("restore", str(backup), code=1).stderr
        finally:
            over.set()
            renewing.join()
        client.set(keys.RESTORING_KEY, "something else")  # without a TTL
        assert "another restore is running: nothing was restored" in valkey_site("restore", str(backup), code=1).stderr
        client.delete(keys.RESTORING_KEY)


def test_a_restore_that_lost_its_lock_stops(valkey_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_lock, "RENEW_SECONDS", 0.05)
    with valkey_site.stock() as client:
        with restore_lock.RestoreLock(valkey_site.settings) as lock:
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
    backup: Path, valkey_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    valkey_site("restore", str(backup), "--on-conflict", "replace")
    valkey_site("keys", "create", "own", "--scope", "ask")
    monkeypatch.setattr("qa_cluster.cluster.backup.restoring.MAX_KEYS", 3)
    before = valkey_site.everything()
    with valkey_site.client() as client:
        client.put_document("n1", "Changed.", collection="many")
    refused = valkey_site("restore", str(backup), "--on-conflict", "replace", code=1).stderr
    assert "the backup has 3 API keys and the cluster 1 other valid keys, but the limit is 3" in refused
    assert valkey_site.everything() != before
    monkeypatch.undo()
    valkey_site("restore", str(backup), "--on-conflict", "replace")
    assert valkey_site.everything() == before


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
