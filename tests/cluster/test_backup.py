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
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from qa_cluster import keys
from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.cluster.backup.lines import read_lines
from qa_cluster.cluster.nodes.connect import cluster_client, shards_of
from qa_cluster.cluster.nodes.node import command
from qa_cluster.cluster.servers.local import with_cluster
from qa_cluster.config import Settings
from qa_cluster.documents.stored import RECORD_FIELDS
from qa_cluster.errors import NotFound
from qa_cluster.types import Feedback, Pin, Synonyms
from tests.cluster.test_commands import Qa
from tests.harness.polling import eventually
from tests.harness.ports import free_port
from tests.harness.system import PATIENT
from tests.harness.tiny_readers import tiny_reader

pytestmark = pytest.mark.timeout(600)

MANY = 150
MARKDOWN = "# Lakes\n\nZürich lies on a lake. 🦆 Ducks swim there.\n\n## Rivers\n\nThe Nile flows north.\n"
QUESTIONS = (
    ("Who wrote the first program?", "default"),
    ("Where does the Nile flow?", "books"),
    # The other sentences have equal scores, so their order depends on the order of writing.
    ("What is number 77?", "many"),
)
SCRIPT = """
GB('CommandReader').map(lambda r: 'hello ' + r[1]).register(trigger='hello')
GB('StreamReader').foreach(lambda r: None).register(prefix='numbers')
GB('ShardsIDReader').foreach(lambda r: execute('SET', 'ran:{' + hashtag() + '}', '1')).run()
"""
OTHER_SCRIPT = "GB('CommandReader').map(lambda r: 'other').register(trigger='hello')"


class Site(Qa):
    """A cluster in a folder. Its default reader is in a different folder."""

    def __init__(self, folder: Path, server: str, shards: int) -> None:
        super().__init__(folder, server)
        tiny_reader(folder / "plain", "plain", last=True)
        self.shards = shards

    def up(self, *options: str) -> None:
        self("--set", f"shards={self.shards}", "--set", "reader=plain", "up", *options)

    @property
    def settings(self) -> Settings:
        chosen = replace(PATIENT, data_dir=self.folder / ".qa-cluster", start_timeout_ms=120_000)
        secret = chosen.data_dir / "password"
        if secret.exists():
            chosen = replace(chosen, cluster_password=secret.read_text().strip())
        return with_cluster(chosen)

    def client(self) -> ClusterClient:
        return ClusterClient(self.settings)

    def everything(self) -> dict[str, Any]:
        """The text and the record of every document, by its name."""
        found: dict[str, Any] = {}
        client: Any = cluster_client(self.settings, self.settings.cluster_url)
        with client:
            for key in client.scan_iter(match="paragraphs:*", count=1000):
                parsed = keys.parse_tagged(key.decode(), keys.PARAGRAPHS_PREFIX)
                assert parsed is not None
                fields = [name for name in RECORD_FIELDS if name not in ("tokenized", "splitter", "analyzer")]
                found[parsed[0]] = (client.get(key), client.hmget(keys.document_key(*parsed), *fields, "source"))
        return found

    def answers(self) -> list[Any]:
        with self.client() as client:
            found = [
                client.ask(question, collection=where, cache="off", retriever_k=1) for question, where in QUESTIONS
            ]
            for result in found:
                for answer in result.answers:
                    text = client.get_document(answer.document_id, collection=where_of(result.question)).text
                    assert text[answer.start : answer.end] == answer.answer
        return [
            [
                (a.answer, a.start, a.end, a.document_id, a.document_version, a.metadata, a.section)
                for a in result.answers
            ]
            for result in found
        ]

    def trigger(self, *words: str) -> Any:
        settings = self.settings
        shards = shards_of(settings, settings.cluster_url)
        try:
            return command(shards[-1][1], "RG.TRIGGER", *words)
        finally:
            for _, client in shards:
                client.close()

    def embedded(self) -> bool:
        """Whether every document has its vectors, which a ranking by meaning needs."""
        settings = self.settings
        shards = shards_of(settings, settings.cluster_url)
        try:
            return not any(int(client.info("qa")["qa_unembedded_documents"]) for _, client in shards)
        finally:
            for _, client in shards:
                client.close()

    def calls(self, name: str) -> int:
        """The number of calls of a command on all shards."""
        settings = self.settings
        shards = shards_of(settings, settings.cluster_url)
        try:
            return sum(
                int(client.info("commandstats").get(f"cmdstat_{name}", {}).get("calls", 0)) for _, client in shards
            )
        finally:
            for _, client in shards:
                client.close()

    def ran(self) -> int:
        """The number of shards on which the script has run."""
        settings = self.settings
        client: Any = cluster_client(settings, settings.cluster_url)
        with client:
            return len(list(client.scan_iter(match="ran:*", count=1000)))

    def registrations(self) -> list[tuple[str, str]]:
        settings = self.settings
        shards = shards_of(settings, settings.cluster_url)
        try:
            rows = [pairs(row) for row in command(shards[0][1], "RG.DUMPREGISTRATIONS")]
        finally:
            for _, client in shards:
                client.close()
        data = [(row["reader"], pairs(row["RegistrationData"])) for row in rows if '"qa-functions"' not in row["PD"]]
        return sorted((reader, entry.get("status", "")) for reader, entry in data)


def pairs(row: Any) -> dict[str, Any]:
    flat = [part for pair in row.items() for part in pair] if isinstance(row, dict) else row
    plain = [part.decode() if isinstance(part, bytes) else part for part in flat]
    return dict(zip(plain[::2], plain[1::2], strict=True))


def where_of(question: str) -> str:
    return next(where for asked, where in QUESTIONS if asked == question)


def site(tmp: pytest.TempPathFactory, name: str, server: str, shards: int) -> Iterator[Site]:
    if server and shutil.which(server) is None:
        pytest.skip(f"{server} is not installed")
    made = Site(tmp.mktemp(name), server, shards)
    try:
        made.up(*(["--generate-password"] if name == "source" else []))
        if name == "source":
            fill(made)
        yield made
    finally:
        made("down")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three shards of Valkey with a password and all kinds of contents."""
    yield from site(tmp_path_factory, "source", "", 3)


@pytest.fixture(scope="module")
def redis_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from site(tmp_path_factory, "redis", "redis-server", 1)


@pytest.fixture(scope="module")
def valkey_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from site(tmp_path_factory, "valkey", "", 2)


def fill(qa: Site) -> None:
    tiny_reader(qa.folder / "mine", "org/mine", last=False)
    tiny_reader(qa.folder / "beside", "beside", last=True, weights=bytes(64))
    qa("model", "load", "mine", "--context-tokens", "48")
    qa("model", "load", "beside", "--beside")
    for name in ("books", "many", "empty"):
        qa("collections", "create", name)
    (qa.folder / "lakes.md").write_text(MARKDOWN)
    qa("ingest", "lakes.md", "--prefix", "site/", "--collection", "books")
    with qa.client() as client:
        client.put_document(
            "ada {1} 50%", "Ada Lovelace wrote the first program in 1843.\r\n\x00End. ", "A “title”",
            {"year": 1843, "big": 2**62, "ratio": 1.0, "tags": ["a", None, "ü"], "nested": {"z": 1, "a": True}},
        )  # fmt: skip
        client.put_document("blank", "", "A title without a text")
        client.put_pin(Pin("Who pins?", "An editor."), collection="books")
        client.set_synonyms(Synonyms(("car, automobile",), 0.7))
        for number in range(3):
            client.send_feedback(Feedback(f"Number {number}?", "right"), collection="books")
        lines = [{"id": f"n{number}", "text": f"Number {number} is a number."} for number in range(MANY)]
        (qa.folder / "many.jsonl").write_text("\n".join(map(json.dumps, lines)))
    qa("ingest", "many.jsonl", "--collection", "many")
    settings = qa.settings
    stock: Any = cluster_client(settings, settings.cluster_url)
    with stock:
        tag = keys.partition_of("stock", 12)
        stock.set(keys.paragraphs_key("stock", tag), "A stock client wrote this.")
        eventually(lambda: stock.hget(keys.document_key("stock", tag), "tokenized"))
    shards = shards_of(settings, settings.cluster_url)
    first = shards[0][1]
    assert (
        command(first, "RG.PYEXECUTE", SCRIPT, "ID", "mine", "DESCRIPTION", "my own", "REQUIREMENTS", "redis") == b"OK"
    )
    (stream,) = [pairs(row)["id"] for row in command(first, "RG.DUMPREGISTRATIONS") if b"StreamReader" in row]
    command(first, "RG.PAUSEREGISTRATIONS", stream)
    for _, client in shards:
        client.close()
    for name, scope in (("shop", "ask"), ("gone", "search"), ("later", "ask")):
        text = qa("keys", "create", name, "--scope", scope, "--concurrent", "7").stdout.strip()
        (qa.folder / f"{name}.key").write_text(text)
    qa("keys", "revoke", (qa.folder / "gone.key").read_text().split("_")[1])


@pytest.fixture(scope="module")
def backup(source: Site) -> Path:
    target = source.folder / "backup"
    told = source("backup", str(target))
    assert f"{MANY + 4} documents, 4 collections, 3 models, 1 script with functions, 3 API keys saved" in told.stdout
    assert "note:" not in told.stderr
    return target


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


def same(source: Site, target: Site) -> None:
    """Check that a restored cluster has the contents and the answers of the original cluster."""
    assert target.everything() == source.everything()
    for cluster in (source, target):
        eventually(cluster.embedded)
    assert target.answers() == source.answers()
    readers = [
        sorted(
            (row["name"], row["default"], row["context_tokens"])
            for row in json.loads(qa("model", "list", "--json").stdout)
        )
        for qa in (target, source)
    ]
    assert [row for row in readers[0] if not row[0].startswith("plain@")] == readers[1]
    listed = [json.loads(qa("keys", "list", "--json").stdout) for qa in (target, source)]
    assert listed[0] == listed[1]
    with target.client() as mine, source.client() as theirs:
        assert {entry.name: entry.documents for entry in mine.collections()} == {
            entry.name: entry.documents for entry in theirs.collections()
        }
        for name in ("default", "books"):
            assert (mine.pins(name), mine.synonyms(name)) == (theirs.pins(name), theirs.synonyms(name))
            assert mine.feedback(name) == theirs.feedback(name)
        assert (len(mine.pins("books")), len(mine.synonyms().groups), len(mine.feedback("books"))) == (1, 1, 3)
    assert target.registrations() == source.registrations() == [("CommandReader", ""), ("StreamReader", "PAUSED")]
    assert target.trigger("hello", "world") == [b"hello world"] * target.shards
    assert (source.ran(), target.ran()) == (3, 0)


def test_three_shards_of_valkey_become_one_of_redis_and_two_of_valkey(
    source: Site, backup: Path, redis_site: Site, valkey_site: Site
) -> None:
    told = redis_site("restore", str(backup))
    assert f"{MANY + 4} documents restored ({MANY + 4} new, 0 replaced, 0 unchanged, 0 skipped)" in told.stdout
    assert "3 collections, 2 models, 1 script with functions, 3 API keys restored" in told.stdout
    same(source, redis_site)

    again = redis_site.folder / "again"
    redis_site("backup", str(again))
    told = valkey_site("restore", str(again), "--json")
    assert json.loads(told.stdout)["documents"]["new"] == MANY + 4
    same(source, valkey_site)


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
    settings = redis_site.settings
    shards = shards_of(settings, settings.cluster_url)
    assert command(shards[0][1], "RG.PYEXECUTE", OTHER_SCRIPT, "ID", "mine", "UPGRADE") == b"OK"
    shards[0][1].close()
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
    assert redis_site.trigger("hello", "world") == [b"other"]

    told = redis_site("restore", str(backup), "--on-conflict", "replace")
    assert f"1 document restored (0 new, 1 replaced, {MANY + 3} unchanged, 0 skipped)" in told.stdout
    assert redis_site.trigger("hello", "world") == [b"hello world"]
    rows = json.loads(redis_site("model", "list", "--json").stdout)
    assert next(row["context_tokens"] for row in rows if row["id"] == "org/mine") == 48
    states = {key["id"]: key["state"] for key in json.loads(redis_site("keys", "list", "--json").stdout)["data"]}
    assert states[later] == "revoked"
    assert "own" in redis_site.everything()
    with redis_site.client() as client:
        client.delete_document("own")


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
    settings = valkey_site.settings
    shards = shards_of(settings, settings.cluster_url)
    before = valkey_site.everything()
    os.kill(int(shards[1][1].info("server")["process_id"]), signal.SIGKILL)
    for _, client in shards:
        client.close()
    for words in (["backup", str(tmp_path / "backup")], ["restore", str(backup), "--on-conflict", "replace"]):
        assert f"shard {shards[1][0].address}: the server does not answer" in valkey_site(*words, code=3).stderr
    assert list(tmp_path.iterdir()) == []
    valkey_site.up()
    assert valkey_site.everything() == before
