"""Bad input on every route: the status, the form of the error, no changes, and a service that still answers."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from qa_cluster.documents.stored import MAX_TITLE_BYTES, check_document
from qa_cluster.errors import InputTooLong
from tests.api.service_under_test import Wrong, assert_problem, assert_problems, serving
from tests.client.scripted_cluster import ScriptedCluster

JSON = {"content-type": "application/json"}


def nested(depth: int) -> dict[str, Any]:
    """A JSON object with `depth` nested levels."""
    return {"a": nested(depth - 1)} if depth else {}


PIN = {"question": "q", "answer": "a"}
BAD: list[Wrong] = [
    ("GET", "/qa", {}, 422, "validation", ("question", "is required", "parameter")),
    ("GET", "/qa?question=", {}, 422, "validation", ("must not be empty",)),
    ("GET", "/qa?question=%20%3F", {}, 422, "validation", ("letter or a digit",)),
    ("GET", "/qa?question=a&question=b", {}, 422, "validation", ("twice",)),
    ("GET", "/qa?question=%ff", {}, 400, "malformed-query", ("UTF-8",)),
    ("GET", "/qa?question", {}, 400, "malformed-query", ("question",)),
    ("GET", "/qa?question=a&top_k=many", {}, 422, "validation", ("top_k", "an integer", "many")),
    ("GET", "/qa?question=a&top_k=1_0", {}, 422, "validation", ("top_k",)),
    ("GET", "/qa?question=a&top_k=0", {}, 422, "validation", ("from 1 to 20",)),
    ("GET", "/qa?question=a&top_k=21&cache=no", {}, 422, "validation", ("top_k", "cache", "refresh")),
    ("GET", "/qa?question=a&min_score=nan", {}, 422, "validation", ("min_score",)),
    ("GET", "/qa?question=a&min_score=1.1", {}, 422, "validation", ("min_score",)),
    ("GET", "/qa?question=a&waves=perhaps", {}, 422, "validation", ("waves", "true or false")),
    ("GET", "/qa?question=a&doc_id=", {}, 422, "validation", ("doc_id",)),
    ("GET", "/qa?question=a&timeout_ms=" + "9" * 400, {}, 422, "validation", ("timeout_ms", "from 1 to", "999")),
    ("GET", "/qa?question=a&top_k=" + "9" * 5000, {}, 422, "validation", ("top_k", "999")),
    ("GET", "/qa?question=a&top_k=-" + "9" * 400, {}, 422, "validation", ("top_k",)),
    ("GET", "/qa?question=a&min_score=1e999", {}, 422, "validation", ("min_score", "inf")),
    (
        "POST",
        "/qa",
        {"content": b'{"question": "a", "top_k": %b}' % (b"9" * 400), "headers": JSON},
        422,
        "validation",
        (),
    ),
    (
        "POST",
        "/qa",
        {"content": b'{"question": "a", "x": 18446744073709551616}', "headers": JSON},
        422,
        "validation",
        (),
    ),
    ("PUT", "/documents/d", {"json": {"text": "a", "metadata": {"n": 2**64}}}, 422, "validation", ("64 bits",)),
    ("PUT", "/documents/d", {"json": {"text": "a", "metadata": {"n": -(2**63) - 1}}}, 422, "validation", ("64 bits",)),
    ("PUT", "/documents/d", {"json": {"text": "a", "metadata": nested(33)}}, 422, "validation", ("32 deep",)),
    ("PUT", "/documents/d", {"json": {"text": "a", "metadata": nested(300)}}, 422, "validation", ("nested",)),
    ("GET", "/qa?question=a&lang=en", {}, 422, "validation", ("lang", "is not a parameter of this route")),
    ("GET", "/qa?question=" + "a" * 1001, {}, 413, "too-long", ("1001", "1000")),
    ("DELETE", "/qa", {}, 405, "method-not-allowed", ("GET",)),
    ("POST", "/qa", {"content": b"{}"}, 415, "unsupported-media-type", ("application/json",)),
    ("POST", "/qa", {"content": b"{", "headers": JSON}, 400, "malformed-json", ()),
    ("POST", "/qa", {"content": b"\xff", "headers": JSON}, 400, "malformed-json", ()),
    ("POST", "/qa", {"content": b"[]", "headers": JSON}, 422, "validation", ("an object", "array", "object")[:1]),
    ("POST", "/qa?x=1", {"json": {"question": "a"}}, 422, "validation", ("query string",)),
    ("POST", "/qa", {"json": {"question": 5}}, 422, "validation", ("#/question", "a string")),
    ("POST", "/qa", {"json": {"question": None}}, 422, "validation", ("#/question",)),
    ("POST", "/qa", {"json": {"question": "a", "top_k": 1.5, "x/y": 1}}, 422, "validation", ("#/top_k", "#/x~1y")),
    ("POST", "/qa", {"json": {"question": "a", "top_k": True}}, 422, "validation", ("#/top_k", "boolean")),
    ("POST", "/qa", {"json": {"question": "a", "doc_id": [1]}}, 422, "validation", ("#/doc_id",)),
    ("POST", "/qa", {"json": {"question": "a", "doc_id": ["d"] * 101}}, 422, "validation", ("101", "100", "field id")),
    ("POST", "/qa", {"content": b" " * 5000, "headers": JSON}, 413, "body-too-large", ("4096",)),
    ("PUT", "/documents/", {"json": {"text": "a"}}, 422, "validation", ("id",)),
    ("PUT", "/documents/" + "x" * 513, {"json": {"text": "a"}}, 413, "too-long", ("513", "512")),
    ("PUT", "/documents/%ff", {"json": {"text": "a"}}, 422, "validation", ("UTF-8",)),
    ("PUT", "/documents/d", {"json": {}}, 422, "validation", ("#/text", "required")),
    ("PUT", "/documents/d", {"json": {"text": ""}}, 422, "validation", ("#/text", "empty")),
    ("PUT", "/documents/d", {"json": {"text": ["a"]}}, 422, "validation", ("#/text", "array")),
    ("PUT", "/documents/d", {"json": {"text": "a", "title": 1, "metadata": []}}, 422, "validation", ("#/metadata",)),
    ("PUT", "/documents/d?wait=x", {"json": {"text": "a"}}, 422, "validation", ("wait",)),
    ("PUT", "/documents/d", {"content": b"text"}, 415, "unsupported-media-type", ()),
    ("PUT", "/documents/d", {"content": b'{"text": "\\ud800"}', "headers": JSON}, 400, "malformed-json", ()),
    ("PUT", "/documents/d", {"json": {"text": "a"}, "headers": {"if-match": "v"}}, 422, "validation", ("If-Match",)),
    ("PUT", "/documents/d", {"json": {"text": "a"}, "headers": {"if-none-match": '"v"'}}, 422, "validation", ()),
    ("PUT", "/documents/d", {"json": {"text": "a"}, "headers": {"if-match": '"0"'}}, 412, "version-conflict", ()),
    ("PUT", "/documents/d", {"json": {"text": "x" * 5000}}, 413, "body-too-large", ("4096",)),
    ("GET", "/documents/none", {}, 404, "not-found", ("none",)),
    ("GET", "/documents/none?x=1", {}, 422, "validation", ("is not a parameter of this route",)),
    ("DELETE", "/documents/none", {}, 404, "not-found", ("none",)),
    ("POST", "/documents/d", {"json": {}}, 405, "method-not-allowed", ("PUT", "PATCH")),
    ("PATCH", "/documents/d", {"json": {}}, 422, "validation", ("needs fields to set",)),
    ("PATCH", "/documents/d", {"json": {"text": "a"}}, 422, "validation", ("#/text",)),
    ("PATCH", "/documents/none", {"json": {"remove": ["x"]}}, 404, "not-found", ("none",)),
    ("PATCH", "/documents/d", {"json": {"metadata": nested(33)}}, 422, "validation", ("32 deep",)),
    ("PATCH", "/documents/d", {"content": b"{}"}, 415, "unsupported-media-type", ()),
    ("PATCH", "/documents", {"json": {"remove": ["x"]}}, 422, "validation", ("prefix", "without either")),
    ("PATCH", "/documents?filter=x", {"json": {"remove": ["x"]}}, 422, "validation", ("must look like",)),
    ("GET", "/documents?filter=x>null", {}, 422, "validation", ("got null",)),
    ("GET", "/collections/default/fields?x=1", {}, 422, "validation", ("is not a parameter of this route",)),
    ("GET", "/collections/default/fields/x?limit=0", {}, 422, "validation", ("1 to 1000",)),
    ("GET", "/collections/none/fields/x", {}, 404, "not-found", ("none",)),
    ("DELETE", "/collections/default/fields/x", {}, 405, "method-not-allowed", ("GET",)),
    ("GET", "/nowhere", {}, 404, "route-not-found", ("/nowhere",)),
    ("GET", "/qa/", {}, 404, "route-not-found", ()),
    ("GET", "/documents?limit=0", {}, 422, "validation", ("1 to 1000",)),
    ("GET", "/documents?limit=1001", {}, 422, "validation", ("1 to 1000",)),
    ("GET", "/documents?cursor=x", {}, 422, "validation", ("next_cursor",)),
    ("GET", "/documents?cursor=" + "A" * 200, {}, 422, "validation", ("next_cursor",)),
    ("GET", "/documents?cursor=%C3%BC", {}, 422, "validation", ("next_cursor",)),
    ("GET", "/documents?page=2", {}, 422, "validation", ("is not a parameter of this route",)),
    ("POST", "/documents", {"json": {}}, 405, "method-not-allowed", ("GET",)),
    ("GET", "/documents/count?limit=1", {}, 422, "validation", ("is not a parameter of this route",)),
    ("GET", "/documents/%63ount", {}, 404, "not-found", ("count",)),
    ("POST", "/livez", {}, 405, "method-not-allowed", ("GET",)),
    ("DELETE", "/metrics", {}, 405, "method-not-allowed", ()),
    ("GET", "/qa?question=Not%20asked%20yet&cache=only", {}, 404, "cache-miss", ("cache=only",)),
    ("GET", "/search", {}, 422, "validation", ("q", "is required", "parameter")),
    ("GET", "/search?query=a", {}, 422, "validation", ("query", "is not a parameter", "parameters are q,")),
    ("GET", "/search?q=%20%3F", {}, 422, "validation", ("letter or a digit",)),
    ("GET", "/search?q=a&top_k=1001", {}, 422, "validation", ("from 1 to 1000",)),
    ("GET", "/search?q=a&context=17", {}, 422, "validation", ("from 0 to 16",)),
    ("GET", "/search?q=a&filter=year", {}, 422, "validation", ("filter must look like year>=2020",)),
    ("GET", "/search?q=a&filters=%7B%7D", {}, 422, "validation", ("filters/operator must be one of",)),
    ("GET", "/search?q=a&filters=x", {}, 422, "validation", ("filters", "must be an object")),
    ("GET", "/search?q=a&cache=off", {}, 422, "validation", ("cache", "is not a parameter of this route")),
    ("GET", "/search?q=" + "a" * 1001, {}, 413, "too-long", ("1001", "1000")),
    ("PUT", "/search", {}, 405, "method-not-allowed", ("GET",)),
    ("POST", "/search?q=a", {"json": {"query": "a"}}, 422, "validation", ("query string",)),
    ("POST", "/search", {"json": {"query": "a", "filters": []}}, 422, "validation", ("#/filters",)),
    ("POST", "/search", {"json": {"query": 5, "top_k": 0}}, 422, "validation", ("#/query", "a string", "#/top_k")),
    ("POST", "/search", {"json": {"q": "a"}}, 422, "validation", ("#/q", "not a field", "#/query", "required")),
    ("GET", "/search/", {}, 404, "route-not-found", ()),
    ("POST", "/pins", {"json": {}}, 405, "method-not-allowed", ("GET, HEAD, PUT, DELETE",)),
    ("DELETE", "/feedback", {}, 405, "method-not-allowed", ("POST",)),
    ("PUT", "/pins", {"json": {"question": "q"}}, 422, "validation", ("answer is required",)),
    ("PUT", "/pins", {"json": {**PIN, "url": "ftp://x"}}, 422, "validation", ("url must start",)),
    ("PUT", "/pins", {"json": {**PIN, "collection": "none"}}, 404, "not-found", ("no such collection",)),
    ("DELETE", "/pins", {}, 422, "validation", ("question is required",)),
    ("PUT", "/synonyms", {"json": {"groups": ["car"]}}, 422, "validation", ("a group must have",)),
    ("PUT", "/synonyms", {"json": {"groups": ["a b, c d"], "weight": 2}}, 422, "validation", ("weight",)),
    ("POST", "/feedback", {"json": {"question": "q", "verdict": "x"}}, 422, "validation", ("one of right, wrong, be",)),
    ("POST", "/feedback", {"json": {"question": "q", "verdict": "better"}}, 422, "validation", ("better_answer",)),
    ("GET", "/unanswered?collection=none", {}, 404, "not-found", ("no such collection",)),
]


@pytest.mark.hostile
async def test_every_bad_request_is_answered_with_a_problem_and_changes_nothing(cluster: ScriptedCluster) -> None:
    async with serving(cluster, body_max_bytes=4096) as client:
        await client.put("/documents/kept", json={"text": "Ada wrote it."})
        before = [await node.commands.execute("KEYS", "document:*") for node in cluster.nodes]
        await assert_problems(client, BAD)
        assert [await node.commands.execute("KEYS", "document:*") for node in cluster.nodes] == before
        answer = (await client.get("/qa", params={"question": "Who wrote it?"})).json()
        assert answer["answers"][0]["answer"] == "Ada"


@pytest.mark.hostile
async def test_no_error_repeats_a_long_name(cluster: ScriptedCluster) -> None:
    """An earlier version repeated a field name of 400 kB twice in its error."""
    async with serving(cluster) as client:
        for method, path in (("POST", "/qa"), ("POST", "/search"), ("PUT", "/documents/d"), ("POST", "/collections")):
            response = await client.request(method, path, json={"x" * 400_000: 1, "y": 2})
            assert_problem(response, 422, "validation", "xx.. is not a field of this route", "y is not a field")
            assert len(response.content) < 4000
        many = {f"{'n' * 200}{number}": 1 for number in range(10_000)}
        assert len((await client.post("/qa", json=many)).content) < 50_000


BAD_FILTER = {"operator": "AND", "conditions": [{"field": "year", "operator": ">=", "value": "soon"}]}
LATE = [
    ("POST", "/qa", {"question": "a", "filters": BAD_FILTER}, {"pointer": "#/filters/conditions/0/value"}),
    ("POST", "/qa", {"question": "a", "filters": {"operator": "AND"}}, {"pointer": "#/filters/conditions"}),
    ("POST", "/qa", {"question": "a", "filters": {"operator": "~", "x": 1}}, {"pointer": "#/filters/operator"}),
    ("POST", "/qa", {"question": "a", "filter": ["year"]}, {"pointer": "#/filter"}),
    ("POST", "/qa", {"question": "a", "filter": ["year>=soon"]}, {"pointer": "#/filter"}),
    ("POST", "/qa", {"question": "a", "collection": "A b"}, {"pointer": "#/collection"}),
    ("POST", "/qa", {"question": "?"}, {"pointer": "#/question"}),
    ("POST", "/search", {"query": "?"}, {"pointer": "#/query"}),
    ("POST", "/search", {"query": "a", "filter": ["a<1,2"]}, {"pointer": "#/filter"}),
    ("GET", '/qa?question=a&filters={"operator":"AND"}', None, {"parameter": "filters"}),
    ("GET", "/qa?question=a&filter=year", None, {"parameter": "filter"}),
    ("GET", "/qa?question=a&collection=A", None, {"parameter": "collection"}),
    ("GET", "/search?q=%3F", None, {"parameter": "q"}),
    ("GET", "/documents?filter=%22", None, {"parameter": "filter"}),
    ("GET", "/documents?collection=A", None, {"parameter": "collection"}),
    ("GET", "/documents?cursor=x", None, {"parameter": "cursor"}),
    ("GET", "/documents/count?waiting=true&prefix=a", None, {"parameter": "waiting"}),
    ("DELETE", "/documents", None, {"parameter": "prefix"}),
    ("PUT", "/documents/d?collection=A", {"text": "a"}, {"parameter": "collection"}),
    ("PUT", "/documents/", {"text": "a"}, {"parameter": "id"}),
    ("PUT", "/documents/%ff", {"text": "a"}, {"parameter": "id"}),
    ("GET", "/collections/A", None, {"parameter": "name"}),
    ("DELETE", "/collections/%ff", None, {"parameter": "name"}),
    ("POST", "/collections", {"name": "A"}, {"pointer": "#/name"}),
]


async def test_errors_of_later_checks_have_the_same_form(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        for method, path, body, place in LATE:
            found = assert_problem(await client.request(method, path, json=body), 422, "validation")
            assert found["errors"] == [{**place, "detail": found["detail"]}], (method, path, body)


async def test_service_client_and_description_have_the_same_limit_for_titles(cluster: ScriptedCluster) -> None:
    """The limit is in bytes. A title with fewer characters than the limit can have more bytes."""
    async with serving(cluster) as client:
        for title, status in (("t" * MAX_TITLE_BYTES, 201), ("\u20ac" * 1365, 200), ("\u20ac" * 1366, 413)):
            response = await client.put("/documents/d", json={"text": "a", "title": title})
            assert response.status_code == status, response.text
        assert_problem(response, 413, "too-long", "title has 4098 bytes, the limit is 4096")
        with pytest.raises(InputTooLong, match="has 4098 bytes, the limit is 4096"):
            check_document("d", "a", title)
        described = (await client.get("/openapi.json")).json()["paths"]["/documents/{id}"]["put"]["requestBody"]
        schema = described["content"]["application/json"]["schema"]["properties"]["title"]
        assert (schema["maxLength"], "4,096 bytes" in schema["description"]) == (MAX_TITLE_BYTES, True)


async def test_all_wrong_fields_are_reported_at_once(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        response = await client.post("/qa", json={"top_k": 0, "cache": "x", "waves": 3})
        found = assert_problem(response, 422, "validation")
        assert [item["pointer"] for item in found["errors"]] == ["#/question", "#/top_k", "#/waves", "#/cache"]


async def test_an_unexpected_error_shows_no_cause(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(cluster) as client:

        async def boom(*_: object) -> None:
            raise RuntimeError("secret cause")

        monkeypatch.setattr("qa_cluster.asking.asker.Asker.ask", boom)
        response = await client.get("/qa", params={"question": "Who?"}, headers={"x-request-id": "given-1"})
        assert "secret" not in response.text
        assert assert_problem(response, 500, "internal")["request_id"] == "given-1"
        assert "secret cause" in caplog.text and "given-1" in caplog.text


async def test_a_request_id_that_could_harm_a_log_is_ignored(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        for bad in ("a b", "x" * 65, "\u00e9", '"'):
            response: httpx.Response = await client.get("/livez", headers={"x-request-id": bad.encode()})
            assert response.headers["x-request-id"] != bad
