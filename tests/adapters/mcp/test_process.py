"""The process: its end, its keys, its log, its limits, and hostile clients."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client

from tests.adapters.mcp.conftest import (
    HttpServer,
    call,
    environment_of,
    fault,
    http_client,
    http_server,
    service_of,
    stdio_parameters,
)
from tests.harness.polling import eventually
from tests.harness.ports import free_port
from tests.harness.system import TOOL, System

QUESTION = "Who wrote the first program?"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


def ask(number: int = 2) -> dict[str, Any]:
    return {"name": "ask", "arguments": {"question": f"{QUESTION} {number}"}}


def started(system: System, *options: str, **settings: str) -> subprocess.Popen[bytes]:
    """Start `qa-cluster mcp` on pipes and wait for its first reply."""
    process = subprocess.Popen(
        [TOOL, "mcp", *options],
        env=environment_of(system, **settings),
        cwd=system.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["result"]["serverInfo"]["name"] == "qa-cluster"
    return process


def test_the_server_ends_when_standard_input_closes(system: System) -> None:
    output, log = started(system).communicate(timeout=60)
    assert output == b"" and b"standard input has ended" in log


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals_end_the_server_although_standard_input_is_open(system: System, number: int, status: int) -> None:
    process = started(system)
    process.send_signal(number)
    assert process.wait(60) == status
    assert process.stderr is not None and b"Traceback" not in process.stderr.read()
    for pipe in (process.stdin, process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()


def test_malformed_messages_do_not_end_the_server(system: System) -> None:
    process = started(system)
    assert process.stdin is not None and process.stdout is not None
    for line in (b"not json", b"[]", b'{"jsonrpc":"2.0"}', b"\xff\xfe", b'{"a":' * 5000, b"x" * 3_000_000):
        process.stdin.write(line + b"\n")
    process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 9, "method": "ping"}).encode() + b"\n")
    process.stdin.flush()
    while json.loads(line := process.stdout.readline()).get("id") != 9:
        assert line
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_signal_ends_the_http_server(system: System, tmp_path: Path) -> None:
    with http_server(tmp_path, environment_of(system)) as running:
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0
        assert "Traceback" not in running.log.read_text()


def test_foreign_hosts_and_pages_are_refused(server: HttpServer) -> None:
    assert server.post("tools/list", {}).status_code == 200
    assert server.post("tools/list", {}, host=f"localhost:{server.port}").status_code == 200
    assert server.post("tools/list", {}, host=f"evil.example:{server.port}").status_code == 421
    assert server.post("tools/list", {}, host="127.0.0.1.evil.example").status_code == 421
    assert server.post("tools/list", {}, origin="https://evil.example").status_code == 403
    assert server.post("tools/list", {}, origin="http://localhost.evil.example").status_code == 403
    assert server.post("tools/list", {}, origin="null").status_code == 403
    reply = httpx2.post(server.url, content=b"x", headers={"content-type": "text/plain"}, timeout=60)
    assert reply.status_code == 400


def test_large_bodies_and_other_methods_are_refused(server: HttpServer) -> None:
    assert server.post("tools/list", {"x": "y" * 300_000}).status_code == 413
    for method in ("GET", "DELETE", "PUT"):
        reply = httpx2.request(method, server.url, headers={"accept": "text/event-stream"}, timeout=60)
        assert (reply.status_code, reply.headers["allow"]) == (405, "POST")


def test_replies_are_json_without_sessions(server: HttpServer) -> None:
    reply = server.post("tools/call", {"name": "list_collections", "arguments": {}})
    assert reply.headers["content-type"] == "application/json"
    assert "mcp-session-id" not in reply.headers


async def test_fifty_calls_at_the_same_time(server: HttpServer) -> None:
    async with http_client(server.url) as client:
        shown = await asyncio.gather(*(call(client, "ask", **ask(number % 5)["arguments"]) for number in range(50)))
        assert all(entry["collection"] == "default" for entry in shown)


async def test_too_many_calls_are_refused_with_advice_to_wait(system: System, tmp_path: Path) -> None:
    with http_server(tmp_path, environment_of(system, QA_MCP_MAX_CALLS="1")) as running:
        async with http_client(running.url) as client:
            results = await asyncio.gather(
                *(
                    client.call_tool("search", {"query": f"part {number}", "collection": "manuals"})
                    for number in range(50)
                )
            )
            refused = [str(result.content) for result in results if result.is_error]
            assert len(refused) < 50
            assert all("calls are already waiting" in text and "Retry in 1 s" in text for text in refused)
            await call(client, "list_collections")


async def test_writes_need_the_option(system: System, tmp_path: Path) -> None:
    async with Client(stdio_parameters(system, "--write", "--collection", "manuals")) as client:
        tool = (await client.list_tools()).tools[-1]
        assert tool.name == "put_document" and tool.annotations is not None
        assert (tool.annotations.read_only_hint, tool.annotations.destructive_hint) == (False, True)
        new = {"id": "new", "text": "The lighthouse keeper is called Igor.", "metadata": {"kind": "note"}}
        stored = await call(client, "put_document", **new)
        assert (stored["collection"], stored["created"], stored["indexed"]) == ("manuals", True, True)
        assert "overwrite=true" in await fault(client, "put_document", new | {"text": "Other."})
        assert (await call(client, "put_document", **new, overwrite=True))["changed"] is False
        (found,) = (await call(client, "search", query="lighthouse", filter="kind=note"))["results"]
        assert found["id"] == "new"
        assert "512" in await fault(client, "put_document", {"id": "x" * 600, "text": "a"})
        large = "The number of the page is nine. " * 65_000
        assert len(large) > 2_000_000
        assert (await call(client, "put_document", id="large page", text=large))["created"] is True


async def test_the_server_works_without_a_rest_service(system: System) -> None:
    settings = {"QA_CLUSTER_URL": system.url, "QA_SERVICE_URL": "http://127.0.0.1:1"}
    async with Client(stdio_parameters(system, "--direct", **settings)) as client:
        assert (await call(client, "ask", question=QUESTION))["answers"][0]["answer"] == "Ada Lovelace"
        assert (await call(client, "list_collections"))["total"] >= 2
        assert "Use an id from a result" in await fault(client, "fetch", {"id": "missing"})


async def test_a_killed_service_is_named(system: System, tmp_path: Path) -> None:
    address = service_of(system)
    with http_server(tmp_path, environment_of(system)) as running:
        async with http_client(running.url) as client:
            await call(client, "list_collections")
            system.stop_service(signal.SIGKILL)
            try:
                begun = time.monotonic()
                for tool, arguments in (("ask", {"question": QUESTION}), ("fetch", {"id": "pay"})):
                    text = await fault(client, tool, arguments)
                    assert address in text and "qa-cluster serve" in text and "service_url" in text
                assert time.monotonic() - begun < 60
            finally:
                port = system.port
                _restart(system, port)
            assert (await call(client, "fetch", id="pay"))["id"] == "pay"


def _restart(system: System, port: int) -> None:
    """Restart the service on its former port."""
    with (system.folder / "service.log").open("ab") as log:
        system.service = subprocess.Popen(
            [TOOL, "serve", "--port", str(port)], env=system.environment, stdout=log, stderr=log
        )
    eventually(lambda: system.http("/readyz")[0] == 200, 180, ignore=OSError)


def test_wrong_usage_has_status_2(system: System) -> None:
    for options, words in (
        (["--port", "9"], "need --http"),
        (["--http", "--direct"], "leave --direct"),
        (["--service", "nowhere"], "service_url"),
        (["--collection", "No Name"], "collection must be"),
    ):
        done = subprocess.run(
            [TOOL, "mcp", *options],
            env=environment_of(system),
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert words in " ".join(done.stderr.replace("│", " ").split())


def test_only_a_service_with_keys_allows_other_addresses_than_loopback(system: System) -> None:
    command = [TOOL, "mcp", "--http", "--host", "0.0.0.0", "--port", str(free_port())]
    done = subprocess.run(command, env=environment_of(system), capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 2
    assert "without an API key" in done.stderr and "--without-keys" in done.stderr


@pytest.fixture
def keys(system: System) -> Iterator[dict[str, str]]:
    """An API key for each purpose. Afterwards, all keys are deleted."""
    made = {}
    for name, scopes in {"reader": ["ask", "search"], "asker": ["ask"], "writer": ["write"]}.items():
        options = [option for scope in scopes for option in ("--scope", scope)]
        made[name] = system.cli("keys", "create", name, *options).stdout.split()[0]
    limits = ("--requests-per-second", "1", "--sentences-per-day", "1")
    made["limited"] = system.cli("keys", "create", "limited", "--scope", "search", *limits).stdout.split()[0]
    yield made
    system.cli("keys", "clear", "--yes")


async def test_each_caller_has_the_rights_of_its_own_key(system: System, keys: dict[str, str], tmp_path: Path) -> None:
    host = ("--host", "0.0.0.0", "--write")
    environment = environment_of(system, QA_LOG_LEVEL="debug", QA_SERVICE_API_KEY=keys["reader"])
    with http_server(tmp_path, environment, *host) as running:

        async def said(tool: str, arguments: dict[str, Any], **headers: str) -> str:
            async with http_client(running.url, **headers) as client:
                result = await client.call_tool(tool, arguments)
                return str(result.content[0].text)  # type: ignore[union-attr]

        def bearer(name: str) -> dict[str, str]:
            return {"authorization": f"Bearer {keys[name]}"}

        question = {"question": QUESTION}
        # a caller without a key does not get the rights of the key in the settings
        assert "Authorization header" in await said("ask", question)
        assert "Ada Lovelace" in await said("ask", question, **bearer("asker"))
        refused = await said("fetch", {"id": "pay"}, **bearer("asker"))
        assert "needs search" in refused and "Authorization header" in refused
        assert '"length"' in await said("fetch", {"id": "pay"}, **bearer("reader"))
        assert "needs write" in await said("put_document", {"id": "n", "text": "x"}, **bearer("reader"))
        assert "unknown" in await said("ask", question, authorization="Bearer qac_" + "0" * 12 + "_" + "a" * 43)
        assert "Bearer" in await said("ask", question, authorization="Basic c2VjcmV0")
        # concurrent calls do not mix up the callers
        mixed = await asyncio.gather(
            *(said("fetch", {"id": "pay"}, **bearer(name)) for name in ("asker", "reader") * 10)
        )
        assert [('"length"' in text) for text in mixed] == [False, True] * 10
        log = running.log.read_text()
        assert "is not used over HTTP" in log
        for secret in (*keys.values(), "c2VjcmV0", QUESTION):
            assert secret not in log and secret.rpartition("_")[2] not in log


async def test_the_key_of_the_settings_is_used_on_stdio(system: System, keys: dict[str, str]) -> None:
    async with Client(stdio_parameters(system, QA_SERVICE_API_KEY=keys["asker"])) as client:
        assert (await call(client, "ask", question=QUESTION))["answerable"] is True
        assert "QA_SERVICE_API_KEY" in await fault(client, "fetch", {"id": "pay"})
    async with Client(stdio_parameters(system)) as client:
        assert "QA_SERVICE_API_KEY" in await fault(client, "ask", {"question": QUESTION})


async def test_a_public_server_refuses_calls_after_the_service_has_lost_its_keys(
    system: System, keys: dict[str, str], tmp_path: Path
) -> None:
    with http_server(tmp_path, environment_of(system), "--host", "0.0.0.0") as running:
        async with http_client(running.url, authorization=f"Bearer {keys['asker']}") as client:
            await call(client, "ask", question=QUESTION)
            system.cli("keys", "clear", "--yes")

            async def refused() -> bool:
                result = await client.call_tool("list_collections", {})
                return result.is_error is True and "without an API key" in str(result.content)

            for _ in range(60):
                if await refused():
                    break
                await asyncio.sleep(1)
            else:
                raise AssertionError("the server still serves")
