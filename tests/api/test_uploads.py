"""`POST /documents/upload` stores the text of files; a hostile upload harms no other request."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import zipfile
from collections.abc import AsyncIterator
from typing import Any

import pytest

from qa_cluster.access.records import KeyLimits
from qa_cluster.client import NotFound
from qa_cluster.errors import InvalidInput
from tests.api.keyed_requests import bearer, made
from tests.api.service_under_test import assert_problem, listening, rest_client, service, serving
from tests.client.scripted_cluster import ScriptedCluster
from tests.harness.figures import Figures
from tests.harness.polling import eventually_async
from tests.harness.processes import descendants

PATH = "/documents/upload"
MULTIPART = {"content-type": "multipart/form-data; boundary=b"}
PAGE = b"<h1>Quay</h1><p>The fee is five euros.</p>"


def parts(*files: tuple[str, bytes]) -> list[tuple[str, tuple[str, bytes]]]:
    return [("file", file) for file in files]


async def test_the_text_of_files_is_stored(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        query = {
            "prefix": "docs/",
            "base_url": "https://docs.example/g",
            "metadata": json.dumps({"lang": "en", "tags": ["x"]}),
        }
        guide = b"---\ntags: [own]\n---\n# Guide\n\nRead it. Then act.\n"
        sent = parts(("quay.html", PAGE), ("guide/a.md", guide), ("bad.pdf", b"%PDF-1.4"))
        reply = await client.post(PATH, params=query, files=sent)
        assert reply.status_code == 200, reply.text
        body = reply.json()
        assert (body["object"], body["stored"]) == ("list", 2)
        quay, read, bad = body["data"]
        assert (quay["id"], quay["title"], quay["format"], quay["sentences"]) == ("docs/quay.html", "Quay", "html", 1)
        assert (quay["created"], quay["tokenized"], quay["error"]) == (True, True, "")
        assert (read["id"], read["name"], read["sentences"]) == ("docs/guide/a.md", "guide/a.md", 2)
        assert (bad["id"], bad["code"], bad["version"]) == ("docs/bad.pdf", "ERR", "")
        assert "the PDF cannot be read" in bad["error"]
        stored = (await client.get("/documents/docs%2Fquay.html")).json()
        assert (stored["text"], stored["version"]) == ("Quay\n\nThe fee is five euros.", quay["version"])
        assert stored["metadata"]["url"] == "https://docs.example/g/quay.html"
        assert stored["metadata"]["lang"] == "en" and stored["metadata"]["_source"]["format"] == "html"
        assert (await client.get("/documents/docs%2Fguide%2Fa.md")).json()["metadata"]["tags"] == ["own"]
        again = (await client.post(PATH, params=query, files=sent[:1])).json()["data"][0]
        assert (again["changed"], again["version"]) == (False, quay["version"])


async def test_remarks_and_formats(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        sent = parts(("a.txt", "Café. ".encode() * 3 + b"na\xefve"), ("b.gz", gzip.compress(b"# Title\n\nWords.")))
        first, second = (await client.post(PATH, params={"format": "markdown"}, files=sent)).json()["data"]
        assert first["remarks"] == ["bytes that are not UTF-8 were read as windows-1252: 1"]
        assert (second["title"], second["format"], second["remarks"]) == ("Title", "markdown", [])
        assert_problem(await client.post(PATH, params={"format": "no"}, files=sent), 422, "validation", "one of rst")
        wrong = await client.post(PATH, params={"base_url": "file:///etc"}, files=sent)
        assert_problem(wrong, 422, "validation", "is not the address of a folder")


async def test_an_upload_without_a_stored_file_is_an_error(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        one = await client.post(PATH, files=parts(("a.html", b"<p> </p>")))
        assert_problem(one, 422, "validation", "contains no text")
        body = assert_problem(
            await client.post(PATH, files=parts(("a.html", b""), ("b.html", b""))), 422, "validation", "no file was"
        )
        assert [error["parameter"] for error in body["errors"]] == ["a.html", "b.html"]
        missing = await client.post(PATH, params={"collection": "none"}, files=parts(("a.html", PAGE)))
        assert_problem(missing, 404, "not-found", "none")


async def test_a_path_that_leaves_its_folder_is_refused(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        for name in ("../a.txt", "/etc/passwd", "a/../../b.txt", "a//b.txt", "..", "a\u202e.txt", ""):
            head = f'Content-Disposition: form-data; name="file"; filename="{name}"'.replace("\\", "\\\\")
            sent = f"--b\r\n{head}\r\n\r\nWords.\r\n--b--\r\n".encode()
            reply = await client.post(PATH, content=sent, headers=MULTIPART)
            assert_problem(reply, 422, "validation", "is not the name of a file")


async def test_duplicate_overlong_json_and_binary_files_get_separate_errors(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        sent = parts(
            ("a.txt", b"One."), ("a.txt.gz", b"Two."), ("b" * 600, b"x"), ("c.json", b"{}"), ("d.bin", b"\0\1")
        )
        data = (await client.post(PATH, files=sent)).json()["data"]
        assert [bool(file["error"]) for file in data] == [False, True, True, True, True]
        for file, text in zip(data[1:], ("earlier file", "512", "PUT /documents/{id}", "is not text"), strict=True):
            assert text in file["error"]
        assert (await client.get("/documents/a.txt")).json()["text"] == "One."


async def test_only_multipart_bodies_within_the_limits_are_accepted(cluster: ScriptedCluster) -> None:
    async with serving(cluster, upload_max_bytes=5000, upload_max_files=2) as client:
        assert_problem(await client.post(PATH, json={}), 415, "unsupported-media-type", "multipart/form-data")
        assert_problem(await client.post(PATH, data={"a": "b"}), 415, "unsupported-media-type")
        field = await client.post(PATH, files=parts(("a.txt", b"x")), data={"collection": "c"})
        assert_problem(field, 400, "malformed-multipart", "Too many fields")
        three = await client.post(PATH, files=parts(*((f"{n}.txt", b"x") for n in range(3))))
        assert_problem(three, 400, "malformed-multipart", "Maximum number of files is 2")
        large = await client.post(PATH, files=parts(("a.txt", b"x" * 6000)))
        assert_problem(large, 413, "body-too-large", "the limit is 5000 (upload_max_bytes)")

        async def endless() -> Any:
            yield b'--b\r\nContent-Disposition: form-data; name="f"; filename="a.txt"\r\n\r\n'
            for _ in range(1000):
                yield b"x" * 1000

        assert_problem(
            await client.post(PATH, content=endless(), headers=MULTIPART), 413, "body-too-large", "more than"
        )
        for body in (b"", b"--b--\r\n", b"no boundary", b"--b\r\nno colon\r\n\r\nx\r\n--b--\r\n"):
            reply = await client.post(PATH, content=body, headers=MULTIPART)
            assert reply.status_code in (400, 422), reply.text
        none = await client.post(PATH, content=b"--b--", headers={"content-type": "multipart/form-data"})
        assert_problem(none, 400, "malformed-multipart", "boundary")


async def test_the_header_of_a_part_has_a_limit(cluster: ScriptedCluster, figures: Figures) -> None:
    async with serving(cluster) as client:
        long = b"--b\r\nContent-Disposition: form-data; name=file; filename=" + b"a" * 20_000_000
        with figures.measured("a header of 20 MB in an upload", limit_seconds=2.0):
            reply = await client.post(PATH, content=long, headers=MULTIPART)
        assert_problem(reply, 400, "malformed-multipart")


def bomb() -> bytes:
    with zipfile.ZipFile(made := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.text", zipfile.ZIP_STORED)
        for number in range(4):
            archive.writestr(f"{number}.xml", b" " * (100 << 20))
    return made.getvalue()


@pytest.mark.hostile
async def test_decompression_bombs_get_separate_errors(cluster: ScriptedCluster, figures: Figures) -> None:
    async with serving(cluster) as client:
        sent = parts(
            ("a.odt", bomb()),
            ("b.txt", gzip.compress(b" " * (100 << 20))),
            ("c.html", b"<p>" * 200_000),
            ("d.txt", b"x"),
        )
        with figures.measured("uploads that unpack to 400 MB", limit_seconds=30.0):
            data = (await client.post(PATH, files=sent)).json()["data"]
        assert "unpacks to 4194304" in data[0]["error"] and "unpacks to more than" in data[1]["error"]
        assert data[3]["error"] == ""


async def test_reading_a_file_has_a_time_limit_and_its_process_ends(cluster: ScriptedCluster) -> None:
    slow = b"*a " * 300_000  # docutils needs minutes for this text
    async with serving(cluster) as client:
        query = {"timeout_ms": "1500", "format": "rst"}
        reply = await client.post(PATH, params=query, files=parts(("a", slow), ("b", b"x")))
        body = assert_problem(reply, 504, "deadline-exceeded", "before this file was read")
        assert body["code"] == "DEADLINE"
        assert not [line for line in descendants(os.getpid()).values() if "sources.process.child" in line]


async def silent(reading: asyncio.Event) -> AsyncIterator[bytes]:
    """A body that never arrives. `reading` is set when the service waits for it."""
    reading.set()
    await asyncio.Future()
    yield b""


async def test_concurrent_uploads_are_limited(cluster: ScriptedCluster) -> None:
    async with serving(cluster, upload_max_requests=0) as client:
        none = await client.post(PATH, files=parts(("a.html", PAGE)))
        assert_problem(none, 503, "overloaded", "0 concurrent uploads")
    async with serving(cluster, upload_max_requests=1) as client:
        reading = asyncio.Event()
        blocked = asyncio.create_task(client.post(PATH, content=silent(reading), headers=MULTIPART))
        await asyncio.wait_for(reading.wait(), 60)
        refused = await client.post(PATH, files=parts(("a.html", PAGE)))
        assert_problem(refused, 503, "overloaded", "1 concurrent uploads")
        blocked.cancel()


async def test_a_client_that_sends_no_body_loses_its_slot(cluster: ScriptedCluster) -> None:
    async with serving(cluster, upload_max_requests=1, upload_timeout_ms=400) as client:
        late = await client.post(PATH, content=silent(asyncio.Event()), headers=MULTIPART)
        assert_problem(late, 408, "body-timeout", "upload_timeout_ms")

        async def uploads() -> bool:  # retried, because this upload may exceed 400 ms on a busy machine
            return (await client.post(PATH, files=parts(("a.html", PAGE)))).status_code == 200

        assert await eventually_async(uploads)


async def test_a_disconnection_ends_the_reading_of_a_file(cluster: ScriptedCluster) -> None:
    async with listening(cluster) as (_, client):
        upload = asyncio.create_task(client.post(PATH, files=parts(("a.rst", b"*a " * 300_000))))
        await asyncio.sleep(1.0)
        upload.cancel()

        async def is_counted() -> bool:
            return f'route="{PATH}",method="POST",status="499"' in (await client.get("/metrics")).text

        await eventually_async(is_counted, 5)
        assert (await client.post(PATH, files=parts(("a.html", PAGE)))).status_code == 200


async def test_other_methods_use_the_document_with_the_id_upload(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        assert (await client.put(PATH, json={"text": "Words."})).status_code == 201
        assert (await client.get(PATH)).json()["id"] == "upload"
        other = await client.post("/documents/%75pload", files=parts(("a.html", PAGE)))
        assert_problem(other, 405, "method-not-allowed")


async def test_the_client_uploads(cluster: ScriptedCluster, tmp_path: Any) -> None:
    (tmp_path / "a.html").write_bytes(PAGE)
    async with rest_client(cluster) as (app, client):
        (stored,) = await client.upload([tmp_path / "a.html"], metadata={"year": 1}, prefix="p/")
        assert (stored.id, stored.sentences, stored.remarks) == ("p/a.html", 1, ())
        named = await client.upload({"b/ü.md": b"# B", "c.pdf": b"no"}, wait=False)
        assert [(file.id, bool(file.error)) for file in named] == [("b/ü.md", False), ("c.pdf", True)]
        with pytest.raises(NotFound):
            await client.upload({"a.html": PAGE}, collection="none")
        with pytest.raises(InvalidInput, match="cannot be read"):
            await client.upload([tmp_path / "none"])
        await eventually_async(lambda: app.state.metrics.active == 0)


async def test_an_upload_is_logged_and_counted_against_its_key(cluster: ScriptedCluster, tmp_path: Any) -> None:
    log = tmp_path / "audit.jsonl"
    async with service(cluster.target(), audit_log=str(log)) as (app, client):
        key, text = await made(app, "write", limits=KeyLimits(sentences_per_day=1))
        sent = parts(("a.txt", b"One here."), ("b.txt", b"Two here."), ("c.txt", b"Three here."))
        reply = await client.post(PATH, files=sent, headers=bearer(text))
        first, second, third = reply.json()["data"]
        assert (first["error"], second["code"], third["code"]) == ("", "LIMIT", "LIMIT")
        assert (await client.post(PATH, files=sent)).status_code == 401
        _, asking = await made(app, "ask")
        assert_problem(await client.post(PATH, files=sent, headers=bearer(asking)), 403, "forbidden", "write")
    lines = [line for line in map(json.loads, log.read_text().splitlines()) if line["event"] == "documents.upload"]
    assert [(line["status"], line["key"]) for line in lines[:2]] == [(200, key.id), (401, None)]
    assert (lines[0]["documents"], lines[0]["files"], lines[0]["stored"]) == (["a.txt"], 3, 1)
    assert "here" not in log.read_text()
