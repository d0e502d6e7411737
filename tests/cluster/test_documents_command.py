"""`qa-cluster documents`, and the reports and removals of `qa-cluster ingest`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.cluster.provision import storing
from qa_cluster.documents import stored
from qa_cluster.documents.corpus import MAX_JSON_BYTES
from qa_cluster.documents.metadata_limits import MAX_METADATA_BYTES
from qa_cluster.documents.sentence_limit import MAX_SENTENCES
from qa_cluster.errors import ClusterError
from qa_cluster.sources.process.extractor import MAX_FILE_BYTES
from tests.cluster.command import TEXT, Qa, needs_reader

pytestmark = [needs_reader, pytest.mark.timeout(300)]


def write(qa: Qa, name: str, text: str) -> None:
    file = qa.folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def listed(qa: Qa, prefix: str) -> list[str]:
    found: dict[str, Any] = json.loads(qa("documents", "list", "--prefix", prefix, "--json").stdout)
    assert found["next_cursor"] is None
    return sorted(entry["id"] for entry in found["data"])


def test_documents_are_listed_counted_shown_and_deleted(up: Qa) -> None:
    for name in ("ada", "bob", "cyd"):
        write(up, f"manage/{name}.txt", TEXT)
    before = json.loads(up("documents", "count", "--json").stdout)
    assert "3 documents stored (3 new, 0 changed, 0 unchanged)" in up("ingest", "manage", "--prefix", "manage/").stdout
    after = json.loads(up("documents", "count", "--json").stdout)
    assert after == {"documents": before["documents"] + 3, "sentences": before["sentences"] + 9, "waiting": 0}
    counted = f"{after['documents']} documents, {after['sentences']} sentences; 0 pending\n"
    assert up("documents", "count").stdout == counted
    assert "waiting" not in up("documents", "count", "--no-waiting").stdout

    shown = up("documents", "list", "--prefix", "manage/")
    assert "manage/ada.txt" in shown.stdout and "3 documents" in shown.stdout and "--cursor" not in shown.stderr
    ids: list[str] = []
    cursor = ""
    while True:
        page = json.loads(up("documents", "list", "--limit", "1", "--cursor", cursor, "--json").stdout)
        ids += [entry["id"] for entry in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert len(ids) == len(set(ids)) == after["documents"]
    assert "--cursor" in up("documents", "list", "--limit", "1").stderr
    assert "next_cursor" in up("documents", "list", "--cursor", "x", code=2).stderr

    shown = up("documents", "show", "manage/ada.txt")
    assert TEXT in shown.stdout and "manage/ada.txt" in shown.stdout
    assert json.loads(up("documents", "show", "manage/ada.txt", "--json").stdout)["text"] == TEXT
    assert "no such document" in up("documents", "show", "manage/eve.txt", code=1).stderr

    assert "2 documents deleted" in up("documents", "delete", "--yes", "manage/ada.txt", "manage/bob.txt").stdout
    done = up("documents", "delete", "--yes", "manage/cyd.txt", "manage/eve.txt", "--json", code=1)
    assert json.loads(done.stdout) == {"deleted": ["manage/cyd.txt"], "missing": ["manage/eve.txt"]}
    assert "'manage/eve.txt'" in done.stderr
    assert listed(up, "manage/") == []


def test_ingest_reports_the_outcome_of_each_file(up: Qa) -> None:
    lines = [{"id": name, "text": f"{name} wrote it."} for name in ("a", "b", "c")]
    write(up, "said.jsonl", "\n".join(map(json.dumps, lines)))
    up("ingest", "said.jsonl", "--prefix", "said/")
    lines[0]["text"] = "Another text."
    broken = [
        {"id": "a", "text": "Twice."},
        {"id": "long", "text": "t", "title": "x" * 5000},
        {"id": "d", "text": "New."},
    ]
    write(up, "said.jsonl", "\n".join(map(json.dumps, [*lines, *broken])))
    done = up("ingest", "said.jsonl", "--prefix", "said/", code=1)
    assert "4 documents stored, 2 skipped (1 new, 1 changed, 2 unchanged)" in done.stdout
    assert (
        "note: 1 document not stored, because an earlier document of this run has the same id: 'said/a'" in done.stderr
    )
    assert "error: 2 not stored" in done.stderr
    shown = [line.split(maxsplit=3) for line in done.stderr.splitlines() if line.lstrip().startswith("said.jsonl:")]
    assert [(file, f"{one} {two}") for file, one, two, _ in shown] == [
        ("said.jsonl:4", "not stored"),
        ("said.jsonl:5", "not stored"),
    ]
    assert "the id 'said/a'" in shown[0][3]
    assert "title of document 'said/long' has 5000 bytes, the limit is 4096" in shown[1][3]
    assert listed(up, "said/") == ["said/a", "said/b", "said/c", "said/d"]
    assert json.loads(up("documents", "show", "said/a", "--json").stdout)["text"] == "Another text."
    assert "2 skipped" in up("ingest", "said.jsonl", "--prefix", "said/", "--on-error", "skip").stdout
    stopped = up("ingest", "said.jsonl", "--prefix", "said/", "--on-error", "stop", code=1)
    assert "stored" not in stopped.stdout and "said.jsonl:4" in stopped.stderr


def test_a_document_that_the_cluster_refuses_is_skipped(up: Qa, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        write(up, f"refused/{name}.txt", TEXT)
    monkeypatch.setattr("qa_cluster.documents.corpus.check_document", lambda *_: None)
    monkeypatch.setattr(stored, "MAX_TITLE_BYTES", 0)
    write(up, "refused.jsonl", "\n".join(json.dumps({"id": i, "text": "t", "title": i.strip("x")}) for i in ("1", "x")))
    done = up("ingest", "refused.jsonl", "--prefix", "refused/", code=1)
    assert "1 document stored, 1 skipped" in done.stdout
    assert "document 'refused/1': title" in done.stderr
    assert listed(up, "refused/") == ["refused/x"]


def test_ingest_reports_documents_of_another_source_that_it_replaces(up: Qa) -> None:
    for folder in ("one", "two"):
        for name in "abcdefg":
            write(up, f"{folder}/own-{name}.txt", f"{folder} wrote {name}.")
    write(up, "two/own-g.txt", "one wrote g.")
    with ClusterClient(f"redis://{up.status()['shards'][0]['address']}") as client:
        client.put_document("own-b.txt", "A client wrote it.")
    first = up("ingest", "one")
    assert "1 document replaced a document of another source: 'own-b.txt' (source not recorded)" in first.stderr
    write(up, "one/own-a.txt", "one has written a.")
    again = up("ingest", "one")
    assert "7 documents stored (0 new, 1 changed, 6 unchanged)" in again.stdout and "replaced" not in again.stderr
    said = up("ingest", "two").stderr
    assert "6 documents replaced a document of another source: " in said and "and 1 more" in said
    assert f"'own-a.txt' (from {up.folder.resolve() / 'one'})" in said and "give each source its own --prefix" in said
    assert "'own-g.txt'" not in said
    assert "replaced" not in up("ingest", "two").stderr
    assert "replaced" not in up("ingest", "two", "--prefix", "two/").stderr
    (up.folder / "two").rename(up.folder / "moved")
    write(up, "moved/own-a.txt", "moved wrote a.")
    assert "replaced" not in up("ingest", "moved", "--prefix", "two/").stderr
    up("documents", "delete", "--yes", "--prefix", "own-")
    up("documents", "delete", "--yes", "--prefix", "two/")


def test_a_collection_from_its_creation_to_its_deletion(up: Qa) -> None:
    write(up, "books/ada.txt", TEXT)
    missing = up("ingest", "books", "--collection", "books", code=1)
    assert "no such collection: 'books'" in missing.stderr and "qa-cluster collections create books" in missing.stderr
    assert "collection must be 1 to 64 characters" in up("collections", "create", "Books", code=2).stderr
    assert "collection must be 1 to 64 characters" in up("ask", "Who?", "--collection", "a/b", code=2).stderr
    assert "collection books created" in up("collections", "create", "books").stdout
    assert "collection books already exists" in up("collections", "create", "books").stdout
    assert "1 document stored (1 new" in up("ingest", "books", "--collection", "books").stdout
    before = json.loads(up("documents", "count", "--json").stdout)
    of_books = ("--collection", "books")
    counted = {"documents": 1, "sentences": 3, "waiting": 0}
    assert json.loads(up("documents", "count", "--json", *of_books).stdout) == counted
    assert json.loads(up("ask", "Who designed the engine?", "--json", *of_books).stdout)["answerable"]
    assert "Babbage" in up("search", "engine", *of_books).stdout
    assert "no sentence" in up("search", "Babbage", "--filter", "x=null,1", "--filter", "id=none", *of_books).stdout
    assert "ada.txt" in up("documents", "list", *of_books).stdout
    assert TEXT in up("documents", "show", "ada.txt", *of_books).stdout
    assert "no such document" in up("documents", "show", "ada.txt", code=1).stderr
    assert "1 document, 3 sentences tokenized, 0 failed" in up("pretokenize", "--force", *of_books).stdout
    listed = json.loads(up("collections", "list", "--json").stdout)["data"]
    assert {entry["name"]: entry["documents"] for entry in listed} == {"default": before["documents"], "books": 1}
    assert json.loads(up("collections", "count", "books", "--json").stdout)["sentences"] == 3
    status = json.loads(up("status", "--json").stdout)
    assert status["collections"]["books"] == [1, 3] and "books" in up("status").stdout
    assert sum(shard["documents"] for shard in status["shards"]) == before["documents"] + 1
    write(up, "books/eve.txt", TEXT)
    (up.folder / "books/ada.txt").unlink()
    synced = up("ingest", "books", *of_books, "--prefix", "b/", "--sync").stdout
    assert "1 new" in synced and "0 documents deleted" in synced
    assert "1 document deleted" in up("documents", "delete", "--yes", "--prefix", "b/", *of_books).stdout
    assert "1 document deleted" in up("collections", "delete", "--yes", "books").stdout
    gone = up("collections", "delete", "--yes", "books", code=1).stderr
    assert "no such collection" in gone and "create" not in gone
    assert "always exists" in up("collections", "delete", "--yes", "default", code=1).stderr
    assert json.loads(up("documents", "count", "--json").stdout) == before
    assert "books" not in up("collections", "list").stdout


def test_sync_removes_only_documents_whose_files_are_gone(up: Qa) -> None:
    for name in ("a", "b", "sub/c"):
        write(up, f"synced/{name}.txt", TEXT)
    write(up, "other/o.txt", TEXT)
    up("ingest", "other", "--prefix", "sync-other/")
    first = up("ingest", "synced", "--prefix", "sync/", "--sync")
    assert "3 new" in first.stdout and "0 documents deleted" in first.stdout
    (up.folder / "synced/b.txt").unlink()
    (up.folder / "synced/sub/c.txt").unlink()
    write(up, "synced/d.txt", TEXT)
    done = up("ingest", "synced", "--prefix", "sync/", "--sync", "--yes")
    assert "2 documents stored (1 new, 0 changed, 1 unchanged)" in done.stdout
    assert "2 documents deleted" in done.stdout
    assert listed(up, "sync") == ["sync-other/o.txt", "sync/a.txt", "sync/d.txt"]


@pytest.mark.hostile
def test_links_out_of_the_folder_are_left_out_and_counted(up: Qa) -> None:
    write(up, "secrets/key.txt", "The key is 4711.")
    write(up, "linked/a.txt", TEXT)
    (up.folder / "linked/b.txt").symlink_to("../secrets/key.txt")
    (up.folder / "linked/c").symlink_to("../secrets")
    done = up("ingest", "linked", "--prefix", "linked/", "--sync")
    assert "note: 2 links left out: the target is outside the folder" in done.stderr and "--follow-links" in done.stderr
    assert listed(up, "linked/") == ["linked/a.txt"]
    done = up("ingest", "linked", "--prefix", "linked/", "--follow-links")
    assert "note: 2 links followed: linked/b.txt, linked/c" in done.stderr
    assert listed(up, "linked/") == ["linked/a.txt", "linked/b.txt", "linked/c/key.txt"]


BROKEN = bytes(range(256))


def spoil(folder: Path, fault: str) -> None:
    """Make a document of the folder unreadable, or impossible to store."""
    if fault == "broken":
        (folder / "a.txt").write_bytes(BROKEN)
    elif fault == "too long":
        (folder / "a.jsonl").write_text(json.dumps({"id": "a", "text": "t", "title": "x" * 5000}))
    elif fault == "link":
        (folder / "a.txt").symlink_to("nowhere")
    elif fault == "twice":
        (folder / "a.jsonl").write_text('{"id": "a", "text": "t"}\n{"id": "a", "text": "u"}\n')
    elif fault == "no text":
        (folder / "a.txt").write_text("\n")
    elif fault == "json":
        (folder / "a.jsonl").write_text('{"id": "a", "text": "t"}\n{"id": \n')
    else:
        (folder / "a.txt").write_text(TEXT)


@pytest.mark.parametrize(
    ("mode", "fault"),
    [("report", ""), *(("skip", fault) for fault in ("broken", "too long", "link", "twice", "no text", "json"))],
)
def test_sync_removes_documents_of_deleted_files_although_another_file_is_unreadable(
    up: Qa, tmp_path: Path, mode: str, fault: str
) -> None:
    prefix = f"faulty {fault}/"
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "gone.txt").write_text(TEXT)
    arguments = ("ingest", str(folder), "--prefix", prefix, "--sync", "--yes")
    up(*arguments)
    (folder / "gone.txt").unlink()
    spoil(folder, fault)
    done = up(*arguments, "--on-error", mode)
    assert "1 document deleted" in done.stdout
    assert f"{prefix}gone.txt" not in listed(up, prefix)
    assert fault in {"", "twice", "json"} or "error: 1 not stored" in done.stderr


@pytest.mark.parametrize(
    ("mode", "fault"),
    [
        *(("skip", fault) for fault in ("empty", "broken", "shut", "all left out")),
        *((mode, "broken") for mode in ("report", "stop")),
    ],
)
def test_sync_keeps_documents_whose_files_may_still_exist(
    up: Qa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, fault: str
) -> None:
    prefix = f"safe {mode} {fault}/"
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    for name in ("sub/a.txt", "b.txt"):
        (folder / name).write_text(TEXT)
    arguments = ("ingest", str(folder), "--prefix", prefix, "--sync", "--yes")
    up(*arguments)
    if fault == "empty":
        (folder / "sub/a.txt").unlink()
        (folder / "b.txt").unlink()
    elif fault == "broken":
        (folder / "sub/a.txt").write_bytes(BROKEN)
    elif fault == "shut":
        scandir = os.scandir

        def refusing(path: str | os.PathLike[str]) -> Iterator[os.DirEntry[str]]:
            if Path(path).name == "sub":
                raise PermissionError(13, "Permission denied", str(path))
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refusing)
    else:
        arguments = (*arguments, "--exclude", "*")
    whole = mode == "skip" and fault in {"broken", "shut"}
    done = up(*arguments, "--on-error", mode, code=0 if whole else 1)
    assert "0 documents deleted" in done.stdout or "no document was deleted" in done.stderr
    assert listed(up, prefix) == [f"{prefix}b.txt", f"{prefix}sub/a.txt"]


def test_sync_keeps_the_documents_of_a_broken_json_file(up: Qa, tmp_path: Path) -> None:
    lines = [json.dumps({"id": name, "text": f"{name} wrote it."}) for name in ("x", "y")]
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    (tmp_path / "gone.txt").write_text(TEXT)
    arguments = ("ingest", str(tmp_path), "--prefix", "lines/", "--sync", "--yes", "--on-error", "skip")
    up(*arguments)
    (tmp_path / "gone.txt").unlink()
    (tmp_path / "d.jsonl").write_text(f'{lines[0]}\n{{"id": ')
    done = up(*arguments)
    assert "1 document deleted" in done.stdout
    assert "could not be read completely, so documents of JSON files, documents of --raw" in done.stderr
    assert listed(up, "lines/") == ["lines/x", "lines/y"]
    (tmp_path / "d.jsonl").write_text(lines[0])
    assert "1 document deleted" in up(*arguments).stdout
    assert listed(up, "lines/") == ["lines/x"]


def test_a_document_whose_text_is_gone_is_deleted(up: Qa, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.md").write_text(TEXT)
    arguments = ("ingest", str(tmp_path), "--prefix", "emptied/", "--sync", "--yes", "--on-error", "skip")
    up(*arguments)
    (tmp_path / "a.md").write_text("")
    done = up(*arguments)
    assert "1 document deleted" in done.stdout and "a.md: contains no text" in done.stderr
    assert listed(up, "emptied/") == ["emptied/b.md"]


def test_deleting_more_than_a_tenth_needs_a_confirmation(up: Qa, tmp_path: Path) -> None:
    up("collections", "create", "tenth")
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text(TEXT)
    arguments = ("ingest", str(tmp_path), "--prefix", "t/", "--collection", "tenth", "--sync")
    up(*arguments)
    for number in range(2):
        (tmp_path / f"{number}.txt").unlink()
    assert "2 documents deleted" in up(*arguments).stdout
    (tmp_path / "2.txt").rename(tmp_path / "new.txt")
    (tmp_path / "3.txt").unlink()
    dry = json.loads(up(*arguments, "--dry-run", "--json").stdout)
    assert (dry["stored"], dry["new"], sorted(dry["gone"]), dry["deleted"]) == (17, 1, ["t/2.txt", "t/3.txt"], None)
    refused = up(*arguments, code=1)
    assert "1 new" in refused.stdout and "deleted" not in refused.stdout
    assert (
        "2 of the 19 documents of collection tenth are no longer in the folder, which is more than a tenth"
        in refused.stderr
    )
    assert "--yes" in refused.stderr and "'t/" not in refused.stderr
    said = json.loads(up(*arguments, "--json", code=1).stdout)
    assert sorted(said["gone"]) == ["t/2.txt", "t/3.txt"] and said["deleted"] is None
    assert "2 documents deleted" in up(*arguments, "--yes").stdout
    assert json.loads(up("collections", "count", "tenth", "--json").stdout)["documents"] == 17
    up("collections", "delete", "--yes", "tenth")


def test_a_prefix_adopts_documents_that_were_stored_without_one(up: Qa, tmp_path: Path) -> None:
    up("collections", "create", "adopt")
    of = ("--collection", "adopt")
    folder, other = tmp_path / "site", tmp_path / "other"
    for name in ("site/guide/a.txt", "site/b.txt", "site/c.txt", "other/c.txt", "other/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{name} is a file.")
    up("ingest", str(folder), *of)
    up("ingest", str(folder / "guide"), *of)
    up("ingest", str(other), *of)
    with ClusterClient(f"redis://{up.status()['shards'][0]['address']}") as client:
        client.put_document("b.txt", "A client wrote it.", collection="adopt")
        client.put_document("e.txt", "A client wrote it.", collection="adopt")
    (folder / "guide/z.txt").write_text("It is new.")
    done = up("ingest", str(folder), *of, "--prefix", "s/", "--sync", "--adopt")
    assert "4 documents stored (4 new" in done.stdout
    assert "3 documents deleted (3 adopted)" in done.stdout
    found = json.loads(up("documents", "list", *of, "--json").stdout)["data"]
    assert sorted(entry["id"] for entry in found) == [
        *("c.txt", "d.txt", "e.txt"),
        *("s/b.txt", "s/c.txt", "s/guide/a.txt", "s/guide/z.txt"),
    ]
    up("collections", "delete", "--yes", "adopt")


def test_sync_removes_nothing_when_the_cluster_cannot_be_listed_or_storing_fails(
    up: Qa, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        write(up, f"half/{name}.txt", TEXT)
    up("ingest", "half", "--prefix", "half/", "--sync")
    (up.folder / "half/b.txt").unlink()

    def failing(*_: Any, **__: Any) -> Iterator[Any]:
        yield from real(client, prefix="half/")
        raise ClusterError("planted")

    with monkeypatch.context() as patched:
        real = ClusterClient.list_documents
        with ClusterClient(f"redis://{up.status()['shards'][0]['address']}") as client:
            patched.setattr(ClusterClient, "list_documents", failing)
            assert "planted" in up("ingest", "half", "--prefix", "half/", "--sync", code=3).stderr
    with monkeypatch.context() as patched:
        patched.setattr(storing, "wait_tokenized", lambda *_: (_ for _ in ()).throw(ClusterError("planted")))
        done = up("ingest", "half", "--prefix", "half/", "--sync", code=3)
        assert "no document was deleted" in done.stderr
    assert listed(up, "half/") == ["half/a.txt", "half/b.txt"]


def test_sync_keeps_documents_that_were_written_meanwhile(up: Qa, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        write(up, f"race/{name}.txt", TEXT)
    up("ingest", "race", "--prefix", "race/", "--sync")
    (up.folder / "race/b.txt").unlink()
    delete = ClusterClient.delete_document

    def late(client: ClusterClient, id: str, **options: Any) -> str:
        client.put_document(id, "Written meanwhile.")
        return delete(client, id, **options)

    monkeypatch.setattr(ClusterClient, "delete_document", late)
    done = up("ingest", "race", "--prefix", "race/", "--sync", "--yes")
    assert "0 documents deleted" in done.stdout and "not deleted" in done.stderr
    assert listed(up, "race/") == ["race/a.txt", "race/b.txt"]


def test_sync_refuses_unsafe_options(tmp_path: Path) -> None:
    qa = Qa(tmp_path)
    write(qa, "folder/a.txt", TEXT)
    assert "--prefix" in qa("ingest", "folder", "--sync", code=2).stderr
    assert "--prefix" in qa("ingest", "folder", "--sync", "--prefix", "news", code=2).stderr
    for option in ("--yes", "--adopt"):
        assert option in qa("ingest", "folder", option, code=2).stderr
    assert "one folder" in qa("ingest", "folder/a.txt", "--sync", "--prefix", "n/", code=2).stderr
    assert "one folder" in qa("ingest", "folder", "folder", "--sync", "--prefix", "n/", code=2).stderr


def test_the_help_has_every_limit(tmp_path: Path) -> None:
    shown = " ".join(Qa(tmp_path)("ingest", "--help").stdout.replace("│", " ").split())
    assert "ingest [OPTIONS] [PATH]..." in shown
    assert f"{stored.MAX_TEXT_LENGTH:,} characters" in shown
    assert f"{MAX_SENTENCES:,} sentences" in shown
    assert "body_max_bytes" in shown and "8 MiB" in shown
    assert f"id has at most {stored.MAX_ID_BYTES} bytes" in shown
    assert f"title {stored.MAX_TITLE_BYTES:,} bytes" in shown
    assert f"metadata {MAX_METADATA_BYTES:,} bytes" in shown
    assert f"file has at most {MAX_FILE_BYTES >> 20} MiB (.json: {MAX_JSON_BYTES >> 20} MiB" in shown


def test_metadata_are_updated_and_counted(up: Qa) -> None:
    up("collections", "create", "meta")
    of_meta = ("--collection", "meta")
    lines = [
        {"id": name, "text": f"{name} wrote it.", "metadata": {"lang": "en", "year": 2000 + year}}
        for year, name in enumerate(("a", "b", "c"))
    ]
    write(up, "meta.jsonl", "\n".join(map(json.dumps, lines)))
    up("ingest", "meta.jsonl", *of_meta)
    done = up("documents", "update", "a", "eve", "--metadata", "tags=x,y", "--remove", "year", *of_meta, code=1)
    assert "1 document updated, 0 unchanged" in done.stdout and "no such document: 'eve'" in done.stderr
    update = ("documents", "update", "--filter", "year!=null", "--metadata", "lang=null", *of_meta)
    assert "2 documents updated, 0 unchanged" in up(*update).stdout
    found = json.loads(up(*update, "--json").stdout)
    assert found == {
        "updated": 0, "unchanged": 2, "skipped": 0, "complete": True, "next_cursor": None, "missing": []
    }  # fmt: skip
    assert json.loads(up("documents", "show", "a", "--json", *of_meta).stdout)["metadata"] == {
        "lang": "en",
        "tags": ["x", "y"],
    }
    assert "2 documents" in up("documents", "count", "--filter", "lang=null", *of_meta).stdout
    assert "did you mean 'lang'" in up("documents", "count", "--filter", "lagn=en", *of_meta, code=2).stderr
    listed = json.loads(up("collections", "fields", *of_meta, "--json").stdout)["data"]
    assert {entry["name"]: entry["documents"] for entry in listed} == {"year": 2, "lang": 1, "tags": 1}
    assert "3 fields" in up("collections", "fields", *of_meta).stdout
    shown = up("collections", "fields", "year", *of_meta).stdout
    assert "2 distinct values, 2001 to 2002; 2 documents with the field, 1 without it" in shown
    for words in (("a",), ("--metadata", "x=1"), ("a", "--metadata", "x"), ("a", "--remove", "_source")):
        up("documents", "update", *words, *of_meta, code=2)
    for words in (("documents", "delete", "a", *of_meta), ("documents", "delete", "--prefix", "a", *of_meta)):
        assert "--yes" in up(*words, code=2).stderr
    assert "--yes" in up("collections", "delete", "meta", code=2).stderr
    assert "3 documents" in up("documents", "count", *of_meta).stdout
    up("collections", "delete", "--yes", "meta")
