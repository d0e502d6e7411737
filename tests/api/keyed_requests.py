"""All routes with the scopes that they accept, and API keys for tests."""

from __future__ import annotations

from typing import Any

import httpx

from qa_cluster.access.records import ApiKey, new_key
from qa_cluster.api.app import Application

BOOKS, OTHER = {"collection": "books"}, {"collection": "other"}
QUESTION = "Who wrote programs?"
# Method, path (`{}` is the collection), query of a collection, scopes. A key needs one of the scopes.
ROUTES: list[tuple[str, str, str, tuple[str, ...]]] = [
    ("GET", f"/qa?question={QUESTION}&collection={{}}", "", ("ask",)),
    ("HEAD", f"/qa?question={QUESTION}&collection={{}}", "", ("ask",)),
    ("POST", "/qa", '{"question": "' + QUESTION + '", "collection": "{}"}', ("ask",)),
    ("GET", "/search?q=programs&collection={}", "", ("search",)),
    ("POST", "/search", '{"query": "programs", "collection": "{}"}', ("search",)),
    ("GET", "/documents?collection={}", "", ("search",)),
    ("GET", "/documents/count?collection={}", "", ("ask", "search")),
    ("GET", "/documents/ada?collection={}", "", ("search",)),
    ("GET", "/documents/%63ount?collection={}", "", ("search",)),
    ("PUT", "/documents/ada?collection={}", '{"text": "Ada wrote programs."}', ("write",)),
    ("POST", "/documents/upload?collection={}", "{}", ("write",)),
    ("DELETE", "/documents/none?collection={}", "", ("write",)),
    ("DELETE", "/documents?prefix=none&collection={}", "", ("write",)),
    ("PATCH", "/documents/ada?collection={}", '{"remove": ["x"]}', ("write",)),
    ("PATCH", "/documents?prefix=none&collection={}", '{"remove": ["x"]}', ("write",)),
    ("GET", "/pins?collection={}", "", ("write",)),
    ("PUT", "/pins", '{"question": "q", "answer": "a", "collection": "{}"}', ("write",)),
    ("DELETE", "/pins?question=none&collection={}", "", ("write",)),
    ("GET", "/synonyms?collection={}", "", ("write",)),
    ("PUT", "/synonyms", '{"groups": ["car, van"], "collection": "{}"}', ("write",)),
    ("DELETE", "/synonyms?collection={}", "", ("write",)),
    ("GET", "/feedback?collection={}", "", ("write",)),
    ("POST", "/feedback", '{"question": "q", "verdict": "right", "collection": "{}"}', ("ask", "search")),
    ("GET", "/unanswered?collection={}", "", ("write",)),
    ("GET", "/collections/{}/fields", "", ("search",)),
    ("GET", "/collections/{}/fields/x", "", ("search",)),
    ("PUT", "/collections/{}/fields", "{}", ("admin",)),
    ("GET", "/collections/{}", "", ("ask", "search", "write", "admin")),
    ("POST", "/collections", '{"name": "{}"}', ("admin",)),
    ("DELETE", "/collections/{}", "", ("admin",)),
]
# Routes without a collection.
WHOLE: list[tuple[str, str, str, tuple[str, ...]]] = [
    ("GET", "/collections", "", ("ask", "search", "write", "admin")),
    ("GET", "/models", "", ("ask",)),
    ("POST", "/models/default", '{"inputs": {"question": "Who?", "context": "Ada."}}', ("ask",)),
    ("GET", "/metrics", "", ("admin",)),
    ("GET", "/no/such/route", "", ("ask", "search", "write", "admin")),
    ("OPTIONS", "/qa", "", ("ask",)),
    ("POST", "/documents/ada", "", ("write",)),
]
OPEN = ("/livez", "/readyz", "/openapi.json", "/docs", "/", "/page.css", "/page.js", "/page/dom.js")


async def send(
    client: httpx.AsyncClient, route: tuple[str, str, str, tuple[str, ...]], collection: str = "", key: str = ""
) -> httpx.Response:
    """Send a request to a route and return the response."""
    method, path, body, _ = route
    headers = bearer(key) | ({"content-type": "application/json"} if body else {})
    content = body.replace("{}", collection).encode() if "{}" in body else body.encode()
    return await client.request(method, path.replace("{}", collection), content=content, headers=headers)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


async def made(app: Application, *scopes: str, **options: Any) -> tuple[ApiKey, str]:
    """Store a new key in the cluster; return the key and its text."""
    key, text = new_key("the shop", scopes, now=options.pop("now", 1_795_000_000), **options)
    await app.state.engine.api_keys.add(key)
    return key, text


async def with_documents(client: httpx.AsyncClient) -> None:
    """Create two collections with one document each."""
    for name in ("books", "other"):
        await client.post("/collections", json={"name": name})
        await client.put("/documents/ada", params={"collection": name}, json={"text": "Ada wrote programs."})
