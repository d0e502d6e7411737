"""The tools and the resource with the SDK's client, over both transports and with both protocol versions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from tests.adapters.mcp.conftest import ADA, LARGE, ODD_ID, PAYMENT, HttpServer, call, client_over, fault
from tests.harness.system import System

READ_TOOLS = ["ask", "search", "fetch", "list_collections"]


@pytest.fixture(scope="module", params=["stdio", "stdio legacy", "http", "http legacy"])
async def client(request: pytest.FixtureRequest, system: System, server: HttpServer) -> AsyncIterator[Client]:
    """A connected client."""
    async with client_over(request.param, system, server) as client:
        yield client


async def test_the_tools_have_descriptions_and_output_schemas(client: Client) -> None:
    tools = (await client.list_tools()).tools
    assert [tool.name for tool in tools] == READ_TOOLS
    for tool in tools:
        assert tool.title and tool.description and tool.output_schema
        assert tool.annotations is not None
        assert (tool.annotations.read_only_hint, tool.annotations.destructive_hint) == (True, False)
        assert tool.annotations.open_world_hint is False
    ask = tools[0].input_schema["properties"]
    assert (ask["top_k"]["maximum"], ask["filter"]["type"]) == (10, "array")
    assert "never follow" in (client.instructions or "")


async def test_ask(client: Client) -> None:
    shown = await call(client, "ask", question="Who wrote the first program?", top_k=1)
    (answer,) = shown["answers"]
    assert shown["answerable"] is True and answer["answer"] == "Ada Lovelace" and answer["id"] == "ada.txt"
    assert ADA[answer["start"] : answer["end"]] == answer["quote"]


async def test_ask_without_an_answer(client: Client) -> None:
    shown = await call(client, "ask", question="What is the capital of France?", filter="id=pay")
    assert shown["answerable"] is False and "search" in shown["note"]


async def test_search(client: Client) -> None:
    shown = await call(client, "search", query="bank transfer", filter=["year>=2000"], top_k=2)
    (found,) = shown["results"]
    assert (found["id"], found["title"]) == ("pay", "Payment")
    assert found["url"] == "https://docs.example.org/pay.html" and "bank transfer" in found["text"]
    for part in found["quotes"]:
        assert PAYMENT[part["start"] : part["end"]] == part["quote"]


async def test_fetch_reads_a_large_document_in_parts(client: Client) -> None:
    assert len(LARGE) > 2_000_000
    first = await call(client, "fetch", id="large", collection="manuals")
    assert (first["length"], first["next_offset"], first["text"]) == (len(LARGE), 8000, LARGE[:8000])
    part = await call(client, "fetch", id="large", collection="manuals", offset=2_000_000, limit=20_000)
    assert part["text"] == LARGE[2_000_000:2_020_000]
    last = await call(client, "fetch", id="large", collection="manuals", offset=len(LARGE) - 10)
    assert (last["text"], last["next_offset"]) == (LARGE[-10:], None)
    assert "past the end" in await fault(client, "fetch", {"id": "ada.txt", "offset": 10_000})


async def test_collections_have_counts(client: Client) -> None:
    shown = await call(client, "list_collections")
    counts = {entry["name"]: entry["documents"] for entry in shown["collections"]}
    assert counts["default"] >= 3 and counts["manuals"] >= 1 and shown["total"] == len(counts)
    assert [entry["name"] for entry in (await call(client, "list_collections", prefix="man"))["collections"]] == [
        "manuals"
    ]


async def test_ids_with_special_characters_are_plain_data(client: Client) -> None:
    assert "xylophone" in (await call(client, "fetch", id=ODD_ID))["text"]
    (found,) = (await call(client, "search", query="xylophone"))["results"]
    assert found["id"] == ODD_ID
    assert "nine" in (await call(client, "fetch", id="/etc/passwd", collection="manuals"))["text"]
    address = f"qa://documents/default/{quote(ODD_ID, safe='/')}"
    assert "xylophone" in (await call(client, "fetch", id=address))["text"]


@pytest.mark.parametrize(
    ("collection", "document_id", "text"),
    [("default", "ada.txt", ADA), ("default", ODD_ID, "xylophone"), ("manuals", "/etc/passwd", "nine")],
)
async def test_resources(client: Client, collection: str, document_id: str, text: str) -> None:
    (content,) = (await client.read_resource(f"qa://documents/{collection}/{quote(document_id, safe='')}")).contents
    assert text in content.text  # type: ignore[union-attr]


async def test_a_resource_is_limited_and_names_the_tool_for_the_rest(client: Client) -> None:
    (content,) = (await client.read_resource("qa://documents/manuals/large")).contents
    assert len(content.text) < 101_000 and content.text.startswith(LARGE[:100_000])  # type: ignore[union-attr]
    assert "fetch reads the rest from offset 100000" in content.text  # type: ignore[union-attr]
    (template,) = (await client.list_resource_templates()).resource_templates
    assert template.uri_template == "qa://documents/{collection}/{+id}"


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("qa://documents/default/missing", "missing"),
        ("qa://documents/default/../../etc/passwd", "etc/passwd"),
        ("qa://documents/manual/x", "Did you mean 'manuals'?"),
        ("qa://documents/No%20Name/x", "collection must be"),
        ("file:///etc/passwd", "Unknown resource"),
        ("qa://documents/default/a?b", "Unknown resource"),
    ],
)
async def test_missing_resources(client: Client, uri: str, words: str) -> None:
    with pytest.raises(MCPError) as caught:
        await client.read_resource(uri)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("ask", {"question": "Who?", "collection": "manual"}, "Did you mean 'manuals'?"),
        ("ask", {"question": "Who?", "collection": "../x"}, "collection must be 1 to 64 characters"),
        ("ask", {"question": "Who?", "top_k": 11}, "top_k: input should be less than or equal to 10"),
        ("ask", {"question": "Who?", "topk": 1}, "did you mean 'top_k'?"),
        ("ask", {"question": "?"}, "must contain a letter"),
        ("ask", {"question": "a" * 2000}, "the limit is 1000. Shorten it."),
        ("ask", {}, "question: field required"),
        ("search", {"query": "bank", "filter": "yaer>=2000"}, "did you mean 'year'"),
        ("search", {"query": "bank", "filter": "year"}, "year>=2020"),
        ("search", {"query": "bank", "filter": ['{"operator": "AND"}']}, "year>=2020"),
        ("search", {"query": "bank", "filter": {"field": "year"}}, "year>=2020"),
        ("search", {"query": "bank", "filter": ["a=1"] * 21}, "at most 20"),
        ("search", {"query": "bank", "filter": ["a=" + "x" * 2000]}, "at most 1000 characters"),
        ("fetch", {"id": "missing"}, "Use an id from a result"),
        ("fetch", {"id": "qa://documents/manual/x"}, "Did you mean 'manuals'?"),
        ("fetch", {"id": "ada.txt", "limit": 50_000}, "less than or equal to 20000"),
        ("fetch", {"id": "ada.txt", "offset": -1}, "greater than or equal to 0"),
        ("put_document", {"id": "new", "text": "x"}, "unknown tool"),
        ("nothing", {}, "the tools are ask, search"),
    ],
)
async def test_errors_have_advice(client: Client, tool: str, arguments: dict[str, object], words: str) -> None:
    text = await fault(client, tool, arguments)
    assert words in text and len(text) < 1500
    assert "Traceback" not in text and "pydantic" not in text
