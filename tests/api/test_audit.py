"""The audit log has every change, even a refused one, with author, kind and origin, but no text and no secret."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from qa_cluster.access.audit import AuditLog
from qa_cluster.errors import ConfigError
from tests.api.keyed_requests import BOOKS, bearer, made
from tests.api.service_under_test import service
from tests.client.scripted_cluster import ScriptedCluster

SECRET_WORD = "Mnemosyne"


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.hostile
async def test_changes_are_logged_without_their_content(cluster: ScriptedCluster, tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    async with service(cluster.target(), audit_log=str(log)) as (app, client):
        key, text = await made(app, "ask", "search", "write", "admin")
        headers = bearer(text)
        await client.post("/collections", json={"name": "books"}, headers=headers)
        body = {"text": f"{SECRET_WORD} wrote it.", "title": SECRET_WORD, "metadata": {"word": SECRET_WORD}}
        put = await client.put("/documents/a%2Fb", params=BOOKS, json=body, headers={**headers, "x-request-id": "r-1"})
        await client.get("/qa", params={"question": f"Who is {SECRET_WORD}?", **BOOKS}, headers=headers)
        await client.get("/search", params={"q": SECRET_WORD, **BOOKS}, headers=headers)
        await client.put("/documents/x", params=BOOKS, json=body)
        await client.put("/documents/x", params=BOOKS, json=body, headers=bearer(text[:-1] + "?"))
        await client.delete("/documents/none", params=BOOKS, headers=headers)
        await client.delete("/documents", params={"filter": f"word={SECRET_WORD}", **BOOKS}, headers=headers)
        await client.delete("/collections/books", headers=headers)
    found = lines_of(log)
    assert [(line["event"], line["status"]) for line in found] == [
        ("collection.create", 201),
        ("document.put", 201),
        ("document.put", 401),
        ("document.put", 401),
        ("document.delete", 404),
        ("documents.delete", 200),
        ("collection.delete", 200),
    ]
    assert [line["key"] for line in found] == [key.id, key.id, None, None, key.id, key.id, key.id]
    assert found[1] == {
        "time": found[1]["time"],
        "event": "document.put",
        "key": key.id,
        "name": "the shop",
        "from": "127.0.0.1",
        "status": 201,
        "path": "/documents/a%2Fb",
        "request_id": "r-1",
        "collection": "books",
        "version": put.json()["version"],
        "changed": True,
    }
    assert found[5]["deleted"] == 1
    written = log.read_text()
    assert SECRET_WORD not in written and text.split("_", 2)[2][:-1] not in written
    assert log.stat().st_mode & 0o077 == 0


async def test_without_a_key_the_log_has_the_address(cluster: ScriptedCluster, tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    async with service(cluster.target(), audit_log=str(log)) as (_, client):
        await client.put("/documents/a", json={"text": "Ada wrote it."})
    (line,) = lines_of(log)
    assert (line["event"], line["key"], line["from"]) == ("document.put", None, "127.0.0.1")


def test_the_log_continues_in_a_new_file_after_rotation(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(str(path))
    log.note("one", {}, "here")
    path.rename(tmp_path / "audit.jsonl.1")
    log.note("two", {}, "here")
    log.note("three", {}, "here")
    (tmp_path / "copy").write_bytes(path.read_bytes())
    os.truncate(path, 0)  # like logrotate with `copytruncate`
    log.note("four", {}, "here")
    log.close()
    assert [line["event"] for line in lines_of(tmp_path / "audit.jsonl.1")] == ["one"]
    assert [line["event"] for line in lines_of(tmp_path / "copy")] == ["two", "three"]
    assert [line["event"] for line in lines_of(path)] == ["four"]


def test_two_processes_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    logs = [AuditLog(str(path)), AuditLog(str(path))]
    for number in range(20):
        logs[number % 2].note("write", {}, "here", number=number)
    assert [line["number"] for line in lines_of(path)] == list(range(20))
    for log in logs:
        log.close()


def test_an_unwritable_path_is_a_wrong_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="audit_log"):
        AuditLog(str(tmp_path / "none" / "audit.jsonl"))


def test_a_lost_line_is_reported_in_the_log_of_the_service(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    log = AuditLog(str(folder / "audit.jsonl"))
    (folder / "audit.jsonl").unlink()
    folder.rmdir()
    log.note("document.put", {}, "here", path="/documents/a")
    assert "a line of the audit log" in caplog.text and "document.put" in caplog.text


def test_the_log_can_be_standard_error(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    AuditLog("-").note("document.put", {"key": None}, "here")
    assert json.loads(capfdbinary.readouterr().err)["event"] == "document.put"
    AuditLog("").note("document.put", {}, "here")
    assert capfdbinary.readouterr().err == b""
