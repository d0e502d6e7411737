"""`qa-cluster backup` and `restore` on real clusters with other servers and other numbers of shards."""

from __future__ import annotations

import gzip
import json
import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from qa_cluster import keys
from qa_cluster.cluster.backup import functions
from qa_cluster.cluster.backup.lines import read_lines
from qa_cluster.cluster.nodes.connect import host_and_port
from qa_cluster.cluster.nodes.node import command
from qa_cluster.errors import NotFound
from tests.cluster.sites import MANY, Site, incomplete, lists, same
from tests.harness.polling import eventually
from tests.harness.ports import free_port

pytestmark = pytest.mark.timeout(600)

OTHER_SCRIPT = "GB('CommandReader').map(lambda r: 'other').register(trigger='hello')"


def content(backup: Path) -> bytes:
    parts = [path.read_bytes() for path in sorted(backup.rglob("*")) if path.is_file()]
    return b"".join(gzip.decompress(part) if part[:2] == b"\x1f\x8b" else part for part in parts)


def test_a_backup_has_no_password_and_no_key(source: Site, backup: Path) -> None:
    everything = content(backup)
    password = (source.folder / ".qa-cluster" / "password").read_bytes().strip()
    assert len(password) > 16 and password not in everything
    for name in ("shop", "gone"):
        assert (source.folder / f"{name}.key").read_bytes().split(b"_", 2)[2] not in everything
    assert "A “title”".encode() in everything
    found = json.loads((backup / "manifest.json").read_text())
    assert len(found["shards"]) == 3 and all(shard["exact"] for shard in found["shards"])
    assert found["collections"] == ["books", "empty", "many"]


def restored_after_kills(target: Site, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Kill a restore in each of its parts; return the run that is not killed."""
    names = lists(target)
    with target.stock() as client:
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
    return target(*words)


def test_three_shards_of_valkey_become_one_of_redis_and_after_kills_two_of_valkey(
    source: Site, backup: Path, redis_site: Site, valkey_site: Site, tmp_path: Path
) -> None:
    told = redis_site("restore", str(backup))
    assert f"{MANY + 4} documents restored ({MANY + 4} new, 0 replaced, 0 unchanged, 0 skipped)" in told.stdout
    assert "3 collections, 3 models, 1 script with functions, 3 API keys restored" in told.stdout
    same(source, redis_site)

    again = redis_site.folder / "again"
    redis_site("backup", str(again))
    log = tmp_path / "audit.jsonl"
    told = restored_after_kills(valkey_site, ("--set", f"audit_log={log}", "restore", str(again)))
    assert "not restored" not in told.stderr
    same(source, valkey_site)
    assert incomplete(valkey_site) == set()
    events = [(entry["event"], entry.get("complete")) for entry in map(json.loads, log.read_text().splitlines())]
    assert events[-2:] == [("restore.begin", None), ("restore", True)]
    assert ("restore", False) not in events and len(events) >= 4, "a killed restore logs only its start"


def test_restoring_again_changes_nothing(source: Site, backup: Path, redis_site: Site) -> None:
    redis_site("restore", str(backup))
    before = redis_site.everything()
    for policy in ("fail", "skip", "replace"):
        done = json.loads(redis_site("restore", str(backup), "--on-conflict", policy, "--json").stdout)
        assert done["documents"] == {
            **dict.fromkeys(("new", "replaced", "skipped"), 0),
            **{"unchanged": MANY + 4, "refused": {}, "other_version": []},
        }
        assert (done["models"], done["functions"], done["api_keys"], done["kept"]) == (0, 0, 0, [])
    assert redis_site.everything() == before


def test_conflicting_contents_are_refused_skipped_or_replaced(backup: Path, redis_site: Site) -> None:
    redis_site("restore", str(backup))
    later = (backup.parent / "later.key").read_text().split("_")[1]
    with redis_site.client() as client:
        client.put_document("n1", "Number one is mine now.", collection="many")
        client.delete_document("n2", collection="many")
        client.put_document("own", "This was never in the backup.")
    assert redis_site.on_first("RG.PYEXECUTE", OTHER_SCRIPT, "ID", "mine", "UPGRADE") == b"OK"
    redis_site("keys", "revoke", later)
    redis_site("model", "load", str(backup.parent / "mine"), "--context-tokens", "16", "--keep-old")

    before = redis_site.everything()
    refused = redis_site("restore", str(backup), code=1).stderr
    assert "nothing was restored" in refused
    assert all(name in refused for name in ("'n1' of many", "reader org/mine@", "functions mine"))
    assert later not in refused
    assert redis_site.everything() == before

    kept = redis_site("restore", str(backup), "--on-conflict", "skip")
    assert f"1 document restored (1 new, 0 replaced, {MANY + 2} unchanged, 1 skipped)" in kept.stdout
    assert "functions mine" in kept.stderr and "reader org/mine@" in kept.stderr
    assert redis_site.on_first("RG.TRIGGER", "hello", "world") == [b"other"]

    told = redis_site("restore", str(backup), "--on-conflict", "replace")
    assert f"1 document restored (0 new, 1 replaced, {MANY + 3} unchanged, 0 skipped)" in told.stdout
    assert redis_site.on_first("RG.TRIGGER", "hello", "world") == [b"hello world"]
    rows = json.loads(redis_site("model", "list", "--json").stdout)
    assert next(row["context_tokens"] for row in rows if row["id"] == "org/mine") == 48
    states = {key["id"]: key["state"] for key in json.loads(redis_site("keys", "list", "--json").stdout)["data"]}
    assert states[later] == "revoked"
    assert "own" in redis_site.everything()
    with redis_site.client() as client:
        client.delete_document("own")


@pytest.mark.parametrize("paused", [True, False])
def test_a_script_with_other_registrations_than_in_the_backup_is_a_problem(valkey_site: Site, paused: bool) -> None:
    script = "".join(f"GB('StreamReader').foreach(lambda r: None).register(prefix='{name}')\n" for name in "ab")
    stored = functions.StoredFunctions(f"half-{paused}", "", script, (), (paused,))
    with valkey_site.shards() as shards:
        problem = functions.register(shards[0], stored, upgrade=False)
        for registration in functions.sessions_on(shards[0])[stored.id][1]:
            command(shards[0], "RG.UNREGISTER", registration)
    assert "its script registered 2 functions, but the backup has 1" in problem
    assert problem.endswith("Paused in the backup: 1. To pause them again, use RG.PAUSEREGISTRATIONS") == paused


def test_only_restored_keys_open_the_service(source: Site, backup: Path, valkey_site: Site) -> None:
    valkey_site("restore", str(backup), "--on-conflict", "skip")
    port = free_port()
    service = valkey_site.start("serve", "--port", str(port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:

        def ask(name: str) -> int:
            text = (source.folder / f"{name}.key").read_text() if name else ""
            return httpx.get(
                f"http://127.0.0.1:{port}/qa",
                params={"question": "Who wrote the first program?"},
                headers={"Authorization": f"Bearer {text}"} if name else {},
                timeout=60,
            ).status_code

        eventually(lambda: ask("") == 401, ignore=httpx.TransportError)
        assert (ask("shop"), ask("gone")) == (200, 401)
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(60)


def test_backup_and_restore_of_one_collection(source: Site, valkey_site: Site, tmp_path: Path) -> None:
    told = json.loads(source("backup", str(tmp_path / "books"), "--collection", "books", "--json").stdout)
    assert told["counts"] == {
        **{"documents": 1, "text_bytes": len(source.everything()["books%/site/lakes.md"][0]), "collections": 1},
        **{"models": 0, "functions": 0, "api_keys": 0},
    }
    with valkey_site.client() as client:
        if "books" in {entry.name for entry in client.collections()}:
            client.delete_collection("books")
    valkey_site("restore", str(tmp_path / "books"))
    stored = valkey_site.everything()["books%/site/lakes.md"]
    assert stored == source.everything()["books%/site/lakes.md"]
    assert "no such collection: 'none'" in source("backup", str(tmp_path / "x"), "--collection", "none", code=1).stderr
    assert not (tmp_path / "x").exists()


class Writer:
    """Writes increasing numbers to two documents of one shard in turn, and writes and deletes a third document."""

    def __init__(self, qa: Site, pause: float) -> None:
        self._client = qa.client()
        self._stop = threading.Event()
        self._pause = pause
        with self._client as client:
            shards = client._client.engine.shards
            tag = lambda name: shards.shard_of_key(keys.epoch_key(keys.partition_of(name, 12)))  # noqa: E731
            names = [f"pair{number}" for number in range(200)]
            self.a = names[0]
            self.b = next(
                name
                for name in names[1:]
                if tag(name) == tag(self.a) and keys.partition_of(name, 12) != keys.partition_of(self.a, 12)
            )
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self._client as client:
            for number in count():
                for name in (self.a, self.b):
                    client.put_document(name, text_of(number), collection="many", wait=False)
                    if self._stop.wait(self._pause):
                        return
                if number % 3 == 0:
                    client.put_document("comes", text_of(number), wait=False)
                elif number % 3 == 1:
                    client.delete_document("comes")

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        with self._client as client:
            for name in (self.a, self.b):
                client.delete_document(name, collection="many")
            with suppress(NotFound):
                client.delete_document("comes")


def text_of(number: int) -> str:
    return f"The number is {number}. " + "It is written here. " * 20 + f"The number was {number}."


def numbers(backup: Path, *names: str) -> list[int]:
    """Return the numbers in these documents; check that each is complete and occurs once in the backup."""
    lines = [line for path in sorted((backup / "documents").iterdir()) for line in read_lines(path)]
    found = []
    for name in names:
        (line,) = [line for line in lines if line["id"] == name]
        number = int(line["text"].split("number is ")[1].split(".")[0])
        assert line["text"] == text_of(number)
        found.append(number)
    return found


@pytest.mark.parametrize(("pause", "hold"), [(2.0, 0), (0.0, 0), (0.0, 30)], ids=["now and then", "always", "held"])
def test_a_shard_is_saved_at_one_moment_or_the_backup_reports_the_inconsistency(
    source: Site, tmp_path: Path, pause: float, hold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = -1.0 if hold else 120.0 if pause else 1.0
    monkeypatch.setattr("qa_cluster.cluster.backup.saving.PATIENCE_SECONDS", patience)
    with Writer(source, pause) as writer:
        eventually(lambda: f"many%/{writer.b}" in source.everything())
        words = ("backup", str(tmp_path / "backup"), "--hold-writes", str(hold), "--force")
        told = source(*words)
        # repeated until a backup needs a pause of writes
        while hold and not source.calls("client|pause"):
            told = source(*words)
    found = json.loads((tmp_path / "backup" / "manifest.json").read_text())
    first, second = numbers(tmp_path / "backup", writer.a, writer.b)
    exact = all(shard["exact"] for shard in found["shards"])
    if exact:
        assert second in (first, first - 1)
    if pause or hold:
        assert exact
    if hold:
        assert source.calls("client|pause") == source.calls("client|unpause")
    assert exact != ("without a pause" in told.stderr)


def wait_begun(running: subprocess.Popen[str], folder: Path, pattern: str) -> None:
    """Wait until the folder has the first files of a backup, or the backup has ended."""
    while running.poll() is None and not list(folder.glob(pattern)):
        time.sleep(0.001)


def test_a_backup_that_is_killed_leaves_no_folder_and_the_next_one_works(source: Site, tmp_path: Path) -> None:
    target = tmp_path / "backup"

    def caught() -> bool:
        """Kill a backup; return false if it ended before."""
        with source.start("backup", str(target), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
            wait_begun(running, tmp_path, ".backup.unfinished-*/*")
            running.kill()
        if list(tmp_path.glob(".backup.unfinished-*")):
            assert not target.exists()
            return True
        shutil.rmtree(target)
        return False

    eventually(caught)
    (left,) = tmp_path.iterdir()
    said = source("restore", str(left), code=2).stderr.replace("│", "")
    # joined, because the length of the folder's name changes line breaks
    assert "never completed" in " ".join(said.split())
    source("backup", str(target))
    assert list(tmp_path.iterdir()) == [target]


def test_a_full_disk_leaves_no_backup(source: Site, tmp_path: Path) -> None:
    limited = source.start(
        "backup",
        str(tmp_path / "backup"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    _, told = limited.communicate(timeout=120)
    assert limited.returncode == 1, told
    assert f"nothing was saved in {tmp_path / 'backup'}: {os.strerror(27)}; free disk space there" in told
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_backup_leaves_nothing(source: Site, tmp_path: Path) -> None:
    def caught() -> str:
        """Interrupt a backup and return its output, or an empty text if it ended before."""
        with source.start("backup", str(target), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
            wait_begun(running, tmp_path, "*")
            running.send_signal(signal.SIGINT)
            _, told = running.communicate(timeout=300)
        if running.returncode == 0:
            shutil.rmtree(target)
            return ""
        assert running.returncode == 130
        return str(told)

    target = tmp_path / "backup"
    assert "interrupted: nothing was saved" in eventually(caught)
    assert list(tmp_path.iterdir()) == []


def test_without_a_shard_there_is_no_backup_and_no_restore(backup: Path, valkey_site: Site, tmp_path: Path) -> None:
    before = valkey_site.everything()
    with valkey_site.shards() as shards:
        os.kill(int(shards[1].info("server")["process_id"]), signal.SIGKILL)
        address = host_and_port(shards[1])
    for words in (["backup", str(tmp_path / "backup")], ["restore", str(backup), "--on-conflict", "replace"]):
        assert f"shard {address}: the server does not answer" in valkey_site(*words, code=3).stderr
    assert list(tmp_path.iterdir()) == []
    valkey_site.up()
    assert valkey_site.everything() == before
