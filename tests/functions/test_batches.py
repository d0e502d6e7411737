"""Files and batches over HTTP, run by a worker in this process. Each request has one result, and its key's rights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import time
from typing import Any

import httpx
import pytest

from qa_cluster import keys
from qa_cluster.access.records import ApiKey, KeyLimits, new_key
from qa_cluster.api.app import Application
from qa_cluster.api.batches import running
from qa_cluster.api.batches.running import OwnerBatches
from qa_cluster.api.routes import status
from qa_cluster.asking.connecting import Target
from qa_cluster.asking.engine import EngineOptions
from qa_cluster.batches.records import ANONYMOUS_OWNER, PART_BYTES, BatchLimits
from qa_cluster.batches.store import BatchStore, LeaseLost
from qa_cluster.routing.connection import Login
from qa_cluster.topology import Address
from tests.api.service_under_test import service

from .running_shards import Shards

TEXT = "Herman Melville wrote Moby Dick. The whale is white."
QUESTION = "Who wrote Moby Dick?"


class Work:
    """A service, its client, and a worker for its batches."""

    def __init__(self, app: Application, client: httpx.AsyncClient, limits: BatchLimits) -> None:
        self.engine = app.state.engine
        self.client = client
        self.store = BatchStore(self.engine.shards, limits)

    async def upload(self, lines: Sequence[Any] | bytes, **headers: str) -> str:
        data = lines if isinstance(lines, bytes) else b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        reply = await self.client.post(
            "/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", data)}, headers=headers
        )
        assert reply.status_code == 200, reply.text
        assert reply.json()["bytes"] == len(data)
        return str(reply.json()["id"])

    async def create(self, file_id: str, endpoint: str = "/qa", **headers: str) -> dict[str, Any]:
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h", "metadata": {"a": "b"}}
        reply = await self.client.post("/v1/batches", json=body, headers=headers)
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    async def run(self, owner: str = ANONYMOUS_OWNER, seconds: float = 60.0) -> bool:
        return await OwnerBatches(self.engine, self.store, owner).run(seconds)

    async def batch(self, batch_id: str, **headers: str) -> dict[str, Any]:
        return dict((await self.client.get(f"/v1/batches/{batch_id}", headers=headers)).json())

    async def lines(self, file_id: str | None, **headers: str) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        reply = await self.client.get(f"/v1/files/{file_id}/content", headers=headers)
        assert reply.status_code == 200
        return [json.loads(line) for line in reply.text.splitlines()]


@asynccontextmanager
async def work(shards: Shards, **limits: Any) -> AsyncIterator[Work]:
    """A service on the shards with empty batches, and with `TEXT` in a document."""
    target = Target([Address("127.0.0.1", shards.nodes[0].port)], Login(connect_timeout_seconds=10), EngineOptions())
    limited = BatchLimits(**limits)
    async with service(target, batches=limited) as (app, client):
        found = Work(app, client, limited)
        assert (await client.put("/documents/batch", json={"text": TEXT})).status_code in (200, 201)
        delete_batches(shards)  # of tests of other files
        try:
            yield found
        finally:
            await found.engine.api_keys.clear()
            delete_batches(shards)


def delete_batches(shards: Shards) -> None:
    for node in shards.nodes:
        for name in shards.on(node, "KEYS", "*batch*"):
            if str(name).startswith(("batch", keys.BATCH_OWNERS_KEY)):
                shards.on(node, "DEL", name)


def request(custom_id: str, url: str = "/qa", **body: Any) -> dict[str, Any]:
    given = body or ({"question": QUESTION} if url == "/qa" else {"query": "whale"})
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": given}


async def made_key(found: Work, *scopes: str, **more: Any) -> tuple[ApiKey, dict[str, str]]:
    key, text = new_key("k", scopes or ("ask",), now=time(), **more)
    await found.engine.api_keys.add(key)
    return key, {"Authorization": f"Bearer {text}"}


def assert_openai(reply: httpx.Response, status: int, code: str, param: str | None = None, said: str = "") -> None:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code", "request_id"}
    assert (error["code"], error["param"]) == (code, param)
    assert said in error["message"], error


async def test_metrics_count_the_batches_of_all_keys(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "BATCHES_KEEP_SECONDS", 0.0)

    async def numbers(found: Work) -> dict[str, float]:
        lines = (await found.client.get("/metrics")).text.splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if "qa_batch" in name}

    async with work(shards) as found:
        assert set((await numbers(found)).values()) == {0.0}
        await found.create(await found.upload([request("a"), request("b", question="x" * 5000)]))
        await found.create(await found.upload(b"no JSON\n"))
        waiting = await numbers(found)
        assert (waiting['qa_batches{status="validating"}'], waiting['qa_batch_requests{state="pending"}']) == (2, 0)
        await asyncio.sleep(1.1)
        assert (await numbers(found))["qa_batches_oldest_open_seconds"] >= 1
        await found.run()
        ended = await numbers(found)
        assert {name: value for name, value in ended.items() if value} == {
            'qa_batches{status="completed"}': 1,
            'qa_batches{status="failed"}': 1,
            'qa_batch_requests{state="completed"}': 1,
            'qa_batch_requests{state="failed"}': 1,
        }


async def test_a_batch_from_upload_to_content(shards: Shards) -> None:
    async with work(shards) as found:
        wrong = request("wrong", question="")
        file_id = await found.upload([request("one"), wrong, request("two", question="Is it white?", top_k=1)])
        made = await found.create(file_id)
        assert (made["object"], made["status"], made["metadata"]) == ("batch", "validating", {"a": "b"})
        assert made["expires_at"] == made["created_at"] + 86_400
        assert await found.run()
        batch = await found.batch(made["id"])
        assert batch["status"] == "completed"
        assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
        assert batch["in_progress_at"] and batch["completed_at"] and batch["errors"] is None
        first, second = await found.lines(batch["output_file_id"])
        assert (first["custom_id"], second["custom_id"], first["error"]) == ("one", "two", None)
        response = first["response"]
        assert response["status_code"] == 200 and response["request_id"] == first["id"]
        assert response["body"]["answers"][0]["answer"] == "Herman Melville"
        assert response["body"]["id"] == first["id"]
        (failed,) = await found.lines(batch["error_file_id"])
        assert failed["custom_id"] == "wrong" and failed["response"]["status_code"] == 400
        assert failed["response"]["body"]["error"]["param"] == "question"
        assert not await found.run()


async def test_searches_run_too(shards: Shards) -> None:
    async with work(shards) as found:
        made = await found.create(await found.upload([request("s", "/search")]), "/search")
        await found.run()
        (line,) = await found.lines((await found.batch(made["id"]))["output_file_id"])
        assert "The whale is white." in [hit["text"] for hit in line["response"]["body"]["hits"]]


async def test_wrong_lines_fail_the_batch_with_their_numbers(shards: Shards) -> None:
    lines = [
        json.dumps(request("a")),
        "",
        "{",
        "[]",
        json.dumps({"custom_id": "b", "method": "POST", "url": "/qa"}),
        json.dumps(request("a")),
        json.dumps(request("c", "/search")),
        json.dumps(request("d") | {"method": "GET"}),
        json.dumps(request("")),
        json.dumps(request("e") | {"body": 3}),
    ]
    async with work(shards) as found:
        made = await found.create(await found.upload("\n".join(lines).encode()))
        await found.run()
        batch = await found.batch(made["id"])
        assert (batch["status"], batch["output_file_id"]) == ("failed", None) and batch["failed_at"]
        assert [(error["line"], error["code"]) for error in batch["errors"]["data"]] == [
            (3, "invalid_json_line"),
            (4, "invalid_json_line"),
            (5, "missing_required_parameter"),
            (6, "duplicate_custom_id"),
            (7, "mismatched_url"),
            (8, "invalid_method"),
            (9, "invalid_custom_id"),
            (10, "invalid_body"),
        ]
        blank = await found.create(await found.upload(b"\n\n"))
        await found.run()
        assert (await found.batch(blank["id"]))["errors"]["data"][0]["code"] == "empty_file"


async def test_files_are_listed_shown_and_deleted(shards: Shards) -> None:
    async with work(shards) as found:
        ids = [await found.upload([request("x")]) for _ in range(3)]
        listed = (await found.client.get("/v1/files", params={"limit": 2})).json()
        assert [file["id"] for file in listed["data"]] == [ids[2], ids[1]] and listed["has_more"]
        rest = (await found.client.get("/v1/files", params={"after": listed["last_id"]})).json()
        assert [file["id"] for file in rest["data"]] == [ids[0]] and not rest["has_more"]
        assert (await found.client.get("/v1/files", params={"purpose": "batch_output"})).json()["data"] == []
        shown = (await found.client.get(f"/v1/files/{ids[0]}")).json()
        assert (shown["filename"], shown["purpose"], shown["status"]) == ("in.jsonl", "batch", "processed")
        batch = await found.create(ids[0])
        assert_openai(await found.client.delete(f"/v1/files/{ids[0]}"), 409, "conflict", said=batch["id"])
        deleted = await found.client.delete(f"/v1/files/{ids[1]}")
        assert deleted.json() == {"id": ids[1], "object": "file", "deleted": True}
        assert_openai(await found.client.get(f"/v1/files/{ids[1]}"), 404, "notfound")
        assert not shards.client.exists(keys.batch_part_key(ids[1], 0, ANONYMOUS_OWNER))


async def test_a_large_file_is_stored_and_read_in_parts(shards: Shards) -> None:
    async with work(shards) as found:
        data = b"".join(b'{"n": %d}\n' % number for number in range(100_000))
        file_id = await found.upload(data)
        assert (await found.client.get(f"/v1/files/{file_id}/content")).content == data
        assert shards.client.strlen(keys.batch_part_key(file_id, 0, ANONYMOUS_OWNER)) == PART_BYTES


async def test_errors_have_the_shape_of_openai(shards: Shards) -> None:
    async with work(shards, file_bytes=2000) as found:
        client = found.client
        form: dict[str, Any] = {"files": {"file": ("a", b"x")}}
        assert_openai(await client.post("/v1/files", **form), 400, "validation", "purpose")
        other = {"purpose": "fine-tune"}
        assert_openai(await client.post("/v1/files", data=other, **form), 400, "validation", "purpose")
        purpose = {"purpose": "batch"}
        assert_openai(await client.post("/v1/files", data=purpose, files={"f": b"x"}), 400, "validation", "file")
        assert_openai(await client.post("/v1/files", data=purpose, files={"file": b""}), 400, "validation", "file")
        assert_openai(await client.post("/v1/files", json={}), 415, "unsupported_media_type")
        too_large = await client.post("/v1/files", data=purpose, files={"file": b"x" * 2001})
        assert_openai(too_large, 413, "body_too_large", said="batch_file_max_bytes")
        assert (await client.get("/v1/files")).json()["data"] == []
        assert_openai(await client.get("/v1/files/nothing"), 404, "notfound")
        assert_openai(await client.get("/v1/nothing"), 404, "route_not_found")
        assert_openai(await client.delete("/v1/batches"), 405, "method_not_allowed")
        file_id = await found.upload(b"x")
        for field, value in (
            ("endpoint", "/v1/chat/completions"),
            ("completion_window", "soon"),
            ("input_file_id", "x"),
        ):
            body = {"input_file_id": file_id, "endpoint": "/qa", "completion_window": "24h", field: value}
            assert_openai(await client.post("/v1/batches", json=body), 400, "validation", field)
        body = {"input_file_id": f"file-{'0' * 24}", "endpoint": "/qa", "completion_window": "24h"}
        assert_openai(await client.post("/v1/batches", json=body), 404, "notfound")
        assert_openai(await client.post(f"/v1/batches/batch_{'0' * 24}/cancel"), 404, "notfound")
        assert_openai(await client.get("/v1/batches", params={"after": "x"}), 404, "notfound")


async def test_a_key_sees_only_its_own_batches_and_its_rights_apply_to_each_line(shards: Shards) -> None:
    async with work(shards) as found:
        shop, header = await made_key(found, "ask", collections=["default"])
        _, other = await made_key(found, "search")
        _, writer = await made_key(found, "write")
        assert_openai(await found.client.get("/v1/files"), 401, "unauthorized")
        assert_openai(await found.client.get("/v1/files", headers=writer), 403, "forbidden")
        lines = [request("a"), request("b", question=QUESTION, collection="books"), request("c")]
        file_id = await found.upload(lines, **header)
        made = await found.create(file_id, **header)
        for path in (f"files/{file_id}", f"files/{file_id}/content", f"batches/{made['id']}"):
            assert_openai(await found.client.get(f"/v1/{path}", headers=other), 404, "notfound")
        assert_openai(await found.client.post(f"/v1/batches/{made['id']}/cancel", headers=other), 404, "notfound")
        assert (await found.client.get("/v1/batches", headers=other)).json()["data"] == []
        mine = await found.upload([request("s", "/search")], **other)
        body = {"input_file_id": mine, "endpoint": "/qa", "completion_window": "24h"}
        assert_openai(await found.client.post("/v1/batches", json=body, headers=other), 403, "forbidden")
        assert await found.run(shop.id)
        batch = await found.batch(made["id"], **header)
        assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
        (refused,) = await found.lines(batch["error_file_id"], **header)
        assert refused["custom_id"] == "b" and refused["response"]["status_code"] == 403
        again = await found.create(file_id, **header)
        await found.engine.api_keys.revoke(shop.id)
        assert await found.run(shop.id)
        stored = await found.store.batch(shop.id, again["id"])
        assert (stored.status, stored.completed, stored.failed) == ("completed", 0, 3)


async def test_limits_of_a_key(shards: Shards) -> None:
    async with work(shards, open=1, key_bytes=1600, lines=2, file_bytes=1500) as found:
        file_id = await found.upload([request(str(number)) for number in range(3)])
        first = await found.create(file_id)
        body = {"input_file_id": file_id, "endpoint": "/qa", "completion_window": "24h"}
        assert_openai(await found.client.post("/v1/batches", json=body), 429, "limit", said="batch_open_max")
        full = await found.client.post("/v1/files", data={"purpose": "batch"}, files={"file": b"x" * 1499})
        assert_openai(full, 429, "limit", said="batch_key_max_bytes")
        await found.run()
        errors = (await found.batch(first["id"]))["errors"]["data"]
        assert [(error["line"], error["code"]) for error in errors] == [(3, "too_many_requests")]
        long = await found.create(await found.upload([request("1"), request("2", question=QUESTION, top_k=3)]))
        await found.run()
        batch = await found.batch(long["id"])
        assert batch["status"] == "failed" and batch["errors"]["data"][0]["code"] == "storage_limit_exceeded"


async def test_limits_of_a_key_apply_to_its_batches(shards: Shards) -> None:
    async with work(shards) as found:
        key, header = await made_key(found, "ask", limits=KeyLimits(requests_per_second=10, concurrent=1))
        made = await found.create(await found.upload([request(str(n)) for n in range(15)], **header), **header)
        begun = time()
        await found.run(key.id)
        assert time() - begun > 1.2
        assert (await found.batch(made["id"], **header))["request_counts"]["completed"] == 15


async def test_a_worker_resumes_the_batch_of_a_dead_worker(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker dies at each record of results, alternately after and before the record is stored."""
    monkeypatch.setattr(running, "_RECORD_LINES", 7)
    async with work(shards) as found:
        lines = [request(f"é{number}", question=QUESTION if number % 5 else "") for number in range(60)]
        made = await found.create(await found.upload(lines))
        real, deaths = BatchStore.record, 0

        async def record(self: BatchStore, *given: Any, **named: Any) -> Any:
            nonlocal deaths
            deaths += 1
            if deaths % 2:
                await real(self, *given, **named)
            raise LeaseLost("the worker dies")

        monkeypatch.setattr(BatchStore, "record", record)
        for _ in range(60):
            if (await found.batch(made["id"]))["status"] == "completed":
                break
            await found.run()
            counts = (await found.batch(made["id"]))["request_counts"]
            if counts["completed"] + counts["failed"] == 60:
                monkeypatch.setattr(BatchStore, "record", real)
        batch = await found.batch(made["id"])
        good, bad = await found.lines(batch["output_file_id"]), await found.lines(batch["error_file_id"])
        assert deaths > 8 and (len(good), len(bad)) == (48, 12)
        assert sorted(line["custom_id"] for line in good + bad) == sorted(line["custom_id"] for line in lines)


async def test_a_worker_that_lost_its_lease_records_nothing(shards: Shards) -> None:
    async with work(shards) as found:
        made = await found.create(await found.upload([request("a"), request("b")]))
        batch = await found.store.batch(ANONYMOUS_OWNER, made["id"])
        assert await found.store.claim(ANONYMOUS_OWNER, "first")
        assert not await found.store.claim(ANONYMOUS_OWNER, "second")
        await found.store.start(batch, "first", 2)
        await found.store.release(ANONYMOUS_OWNER, "other")
        assert not await found.store.claim(ANONYMOUS_OWNER, "second")
        shards.client.delete(keys.batch_lease_key(ANONYMOUS_OWNER))
        assert await found.store.claim(ANONYMOUS_OWNER, "second")
        results = {True: [b'{"custom_id":"a"}\n'], False: []}
        with pytest.raises(LeaseLost):
            await found.store.record(batch, "first", done=1, offset=10, results=results)
        new = await found.store.record(batch, "second", done=1, offset=10, results=results)
        assert await found.store.record(batch, "second", done=1, offset=10, results=results) == new
        with pytest.raises(LeaseLost):
            await found.store.record(batch, "second", done=2, offset=20, results=results)
        assert shards.client.get(keys.batch_part_key(batch.output.id, 0, ANONYMOUS_OWNER)) == '{"custom_id":"a"}\n'


async def test_a_batch_is_cancelled_before_and_during_its_run(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_RENEW_SECONDS", 0.1)
    async with work(shards, concurrency=1) as found:
        file_id = await found.upload([request(str(number), question=f"Who is {number}?") for number in range(400)])
        first = await found.create(file_id)
        gone = (await found.client.post(f"/v1/batches/{first['id']}/cancel")).json()
        assert (gone["status"], gone["output_file_id"]) == ("cancelled", None) and gone["cancelled_at"]
        assert_openai(await found.client.post(f"/v1/batches/{first['id']}/cancel"), 409, "conflict")
        second = await found.create(file_id)
        running_now = asyncio.create_task(found.run())
        while not (await found.batch(second["id"]))["request_counts"]["completed"]:
            await asyncio.sleep(0.05)
        cancelling = (await found.client.post(f"/v1/batches/{second['id']}/cancel")).json()
        assert cancelling["status"] == "cancelling"
        await running_now
        batch = await found.batch(second["id"])
        assert batch["status"] == "cancelled" and 0 < batch["request_counts"]["completed"] < 400
        assert len(await found.lines(batch["output_file_id"])) == batch["request_counts"]["completed"]


async def test_a_batch_expires_with_a_line_for_each_request(shards: Shards) -> None:
    async with work(shards) as found:
        made = await found.create(await found.upload([request("a"), request("b")]))
        shards.client.hset(keys.batch_key(made["id"], ANONYMOUS_OWNER), "expires_at", int(time()) - 1)
        await found.run()
        batch = await found.batch(made["id"])
        assert batch["status"] == "expired" and batch["request_counts"]["failed"] == 2
        lines = await found.lines(batch["error_file_id"])
        assert [(line["custom_id"], line["response"], line["error"]["code"]) for line in lines] == [
            ("a", None, "batch_expired"),
            ("b", None, "batch_expired"),
        ]


async def test_expired_files_and_batches_are_hidden_and_then_deleted(shards: Shards) -> None:
    async with work(shards) as found:
        file_id = await found.upload([request("a")])
        made = await found.create(file_id)
        await found.run()
        output = (await found.batch(made["id"]))["output_file_id"]
        past = int(time()) - 1
        owner = ANONYMOUS_OWNER
        for each in (file_id, output):
            shards.client.hset(keys.batch_file_key(each, owner), "expires_at", past)
            size = shards.client.hget(keys.batch_sizes_key(owner), each).partition(":")[0]
            shards.client.hset(keys.batch_sizes_key(owner), each, f"{size}:{past}")
        shards.client.hset(keys.batch_key(made["id"], owner), "keep_until", past)
        assert_openai(await found.client.get(f"/v1/files/{output}/content"), 404, "notfound")
        assert (await found.client.get("/v1/files")).json()["data"] == []
        assert (await found.client.get("/v1/batches")).json()["data"] == []
        assert await found.store.prune(owner) == 3
        left = [str(name) for node in shards.nodes for name in shards.on(node, "KEYS", "batch*")]
        assert left == []


async def test_batches_are_listed_in_pages(shards: Shards) -> None:
    async with work(shards) as found:
        file_id = await found.upload([request("a")])
        ids = [(await found.create(file_id))["id"] for _ in range(5)][::-1]
        page = (await found.client.get("/v1/batches", params={"limit": 2})).json()
        assert [batch["id"] for batch in page["data"]] == ids[:2] and page["has_more"]
        rest = (await found.client.get("/v1/batches", params={"limit": 3, "after": page["last_id"]})).json()
        assert [batch["id"] for batch in rest["data"]] == ids[2:] and not rest["has_more"]
        for expired in ids[1:3]:
            shards.client.hset(keys.batch_key(expired, ANONYMOUS_OWNER), "keep_until", int(time()) - 1)
        page = (await found.client.get("/v1/batches", params={"limit": 2})).json()
        assert [batch["id"] for batch in page["data"]] == [ids[0], ids[3]] and page["has_more"]


@pytest.mark.hostile
async def test_an_interrupted_upload_leaves_nothing(shards: Shards) -> None:
    async with work(shards) as found:
        body = (
            b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
        )
        head = {"content-type": "multipart/form-data; boundary=b"}

        async def chunks() -> AsyncIterator[bytes]:
            yield body
            for _ in range(5):
                yield b"x" * PART_BYTES

        reply = await found.client.post("/v1/files", content=chunks(), headers=head)
        assert reply.status_code == 400, reply.text
        left = [str(name) for node in shards.nodes for name in shards.on(node, "KEYS", "batch*")]
        assert left == []
