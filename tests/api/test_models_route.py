"""`POST /models/{id}`: the format of Hugging Face's task, the choice of a shard, limits, deadlines, and errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping

import pytest

from qa_cluster.client import AsyncClusterClient, DeadlineExceeded, InputTooLong, InvalidInput, NotFound
from qa_cluster.errors import ReplyError
from qa_cluster.huggingface.request import InvalidRequest, PipelineLimits, parse_request
from tests.api.service_under_test import Wrong, assert_problem, assert_problems, rest_client, service, serving
from tests.client.scripted_cluster import Node, ScriptedCluster, never, refusal
from tests.harness.polling import eventually_async

PAIR = {"question": "Who wrote it?", "context": "Ada wrote it."}
JSON = {"content-type": "application/json"}


async def read(node: Node, arguments: list[str]) -> list[bytes]:
    """Reply as a worker: the answer is the context's first word; the models are "" and "org/name@1"."""
    _, model, text = arguments
    if model not in ("", "org/name@1"):
        raise ReplyError(f"NOTFOUND model '{model}' is not loaded on this shard, loaded are: scripted@aaaaaaaaaaaa")
    request = json.loads(text)
    results = []
    for pair in request["inputs"]:
        word = pair["context"].split()[0]
        answers = [{"score": 0.5, "start": 0, "end": len(word), "answer": word}] * request["parameters"].get("top_k", 1)
        results.append(answers[0] if len(answers) == 1 else answers)
    return [json.dumps({"model": model or "scripted@aaaaaaaaaaaa", "results": results}).encode()]


@pytest.fixture
def reading(cluster: ScriptedCluster) -> ScriptedCluster:
    cluster.triggers["qa.pipeline"] = read
    return cluster


ADA = {"score": 0.5, "start": 0, "end": 3, "answer": "Ada"}


async def test_one_pair_gives_one_answer_and_a_list_gives_a_list(reading: ScriptedCluster) -> None:
    async with serving(reading) as client:
        one = await client.post("/models/default", json={"inputs": PAIR})
        assert (one.status_code, one.json()) == (200, ADA)
        assert one.headers["x-model"] == "scripted@aaaaaaaaaaaa"
        assert one.headers["cache-control"] == "no-store"
        many = await client.post("/models/default", json={"inputs": [PAIR], "parameters": {"top_k": 2}})
        assert many.json() == [[ADA, ADA]]
        sent = json.loads(reading.calls[-1][1][2])
        assert sent == {"inputs": [PAIR], "parameters": {"top_k": 2}}
        # fields that clients of Hugging Face also send
        more = {"inputs": PAIR, "parameters": None, "options": {"use_cache": True}}
        assert (await client.post("/models/default", json=more)).json() == ADA
        metrics = (await client.get("/metrics")).text
        assert "qa_pipeline_pairs_total 3" in metrics
        assert 'qa_http_requests_total{route="/models/{id}",method="POST",status="200"} 3' in metrics


async def test_a_model_name_may_contain_slashes(reading: ScriptedCluster) -> None:
    async with serving(reading) as client:
        for path in ("org/name@1", "org%2Fname%401", "org/name%401"):
            response = await client.post(f"/models/{path}", json={"inputs": PAIR})
            assert (response.json(), response.headers["x-model"]) == (ADA, "org/name@1")


DEEP = "[" * 1010 + "]" * 1010  # the JSON parser accepts this depth, `repr` fails
BAD: list[Wrong] = [
    ("GET", "/models/default", {}, 405, "method-not-allowed", ("POST",)),
    ("POST", "/models/", {"json": {}}, 404, "route-not-found", ("default",)),
    ("POST", "/models/%ff", {"json": {"inputs": PAIR}}, 422, "validation", ("UTF-8",)),
    ("POST", "/models/" + "m" * 513, {"json": {"inputs": PAIR}}, 413, "too-long", ("513", "512")),
    ("POST", "/models/nobody/has-it", {"json": {"inputs": PAIR}}, 404, "not-found", ("nobody/has-it", "scripted@")),
    ("POST", "/models/default", {"content": b"{}"}, 415, "unsupported-media-type", ()),
    ("POST", "/models/default", {"content": b"{", "headers": JSON}, 400, "malformed-json", ()),
    ("POST", "/models/default", {"content": b" " * 5000, "headers": JSON}, 413, "body-too-large", ("4096",)),
    ("POST", "/models/default?timeout_ms=0", {"json": {"inputs": PAIR}}, 422, "validation", ("timeout_ms",)),
    ("POST", "/models/default?top_k=1", {"json": {"inputs": PAIR}}, 422, "validation", ("is not a parameter",)),
    ("POST", "/models/default", {"json": []}, 422, "validation", ("must be an object", "array")),
    ("POST", "/models/default", {"json": {}}, 422, "validation", ("#/inputs", "required")),
    ("POST", "/models/default", {"json": {"inputs": "Who?"}}, 422, "validation", ("#/inputs", "got string")),
    ("POST", "/models/default", {"json": {"inputs": []}}, 422, "validation", ("#/inputs", "empty")),
    ("POST", "/models/default", {"json": {"inputs": [PAIR, {}]}}, 422, "validation", ("#/inputs/1/question",)),
    ("POST", "/models/default", {"json": {"inputs": {**PAIR, "context": ""}}}, 422, "validation", ("must not be",)),
    ("POST", "/models/default", {"json": {"inputs": {**PAIR, "id/~": 1}}}, 422, "validation", ("#/inputs/id~1~0",)),
    ("POST", "/models/default", {"json": {"inputs": [PAIR] * 4}}, 413, "too-long", ("4 pairs", "limit is 3")),
    ("POST", "/models/default", {"json": {"inputs": {**PAIR, "context": "x" * 101}}}, 413, "too-long", ("101", "100")),
    ("POST", "/models/default", {"json": {"inputs": {**PAIR, "question": "x" * 51}}}, 413, "too-long", ("51", "50")),
    ("POST", "/models/default", {"json": {"inputs": PAIR, "parameters": []}}, 422, "validation", ("#/parameters",)),
    ("POST", "/models/default", {"json": {"inputs": PAIR, "options": 1}}, 422, "validation", ("#/options",)),
    (
        "POST",
        "/models/default",
        {"json": {"inputs": PAIR, "parameters": {"top_k": 101, "doc_stride": -1, "x": 1, "padding": "left"}}},
        422,
        "validation",
        ("#/parameters/top_k", "1 to 100", "#/parameters/doc_stride", "#/parameters/x", "#/parameters/padding"),
    ),
    (
        "POST",
        "/models/default",
        {"json": {"inputs": PAIR, "parameters": {"align_to_words": "no"}, "input": 1}},
        422,
        "validation",
        ("#/parameters/align_to_words", "#/input", "unknown"),
    ),
    (
        "POST",
        "/models/default",
        {"content": json.dumps({"inputs": PAIR, "parameters": {"top_k": 0}}).replace("0", DEEP), "headers": JSON},
        422,
        "validation",
        ("#/parameters/top_k", "must be an integer", "..."),
    ),
]


async def test_bad_requests_are_named_and_not_sent_to_a_shard(reading: ScriptedCluster) -> None:
    limits = PipelineLimits(pairs=3, question_chars=50, context_chars=100)
    async with serving(reading, body_max_bytes=4096, pipeline=limits) as client:
        await assert_problems(client, BAD)
        assert {call[1][1] for call in reading.calls if call[1][0] == "qa.pipeline"} == {"nobody/has-it"}


class _Many(Mapping[str, object]):
    """A mapping with a million members that fails if the service reads more than the first one."""

    def __getitem__(self, name: str) -> object:
        if not name.isdigit():
            raise KeyError(name)
        if int(name) >= 1000:
            raise AssertionError(f"member {name} was looked at")
        return 1

    def __iter__(self) -> Iterator[str]:
        return (name for name in map(str, range(1_000_000)) if self[name])

    def __len__(self) -> int:
        return 1_000_000


@pytest.mark.parametrize("where", ["#", "#/inputs", "#/parameters"])
def test_an_error_names_only_the_first_of_a_million_unknown_members(where: str) -> None:
    document: dict[str, Mapping[str, object]] = {"inputs": PAIR, "parameters": {}}
    whole = _Many() if where == "#" else {**document, where[2:]: _Many()}
    with pytest.raises(InvalidRequest) as refused:
        parse_request(whole, PipelineLimits())
    assert len(refused.value.errors) == 50
    assert refused.value.errors[3][0] == f"{where}/3"


async def test_shards_take_turns(reading: ScriptedCluster) -> None:
    async with serving(reading) as client:
        for _ in range(6):
            assert (await client.post("/models/default", json={"inputs": PAIR})).status_code == 200
    ports = [port for port, arguments in reading.calls if arguments[0] == "qa.pipeline"]
    assert sorted(ports) == sorted([node.port for node in reading.nodes] * 2)


async def test_a_request_is_retried_on_another_shard(reading: ScriptedCluster) -> None:
    sick, text = reading.nodes[1], ""

    async def some(node: Node, arguments: list[str]) -> list[bytes]:
        if node is sick:
            raise ReplyError(text)
        return await read(node, arguments)

    reading.triggers["qa.pipeline"] = some
    async with serving(reading) as client:
        for text in (
            "NOWORKER no worker",
            "OVERLOADED full",
            "MODEL no reader",
            "NOTFOUND model",
            "LOADING",
            "CLUSTER x",
        ):
            for _ in range(3):
                assert (await client.post("/models/default", json={"inputs": PAIR})).json() == ADA, text


async def test_a_shard_that_is_down_is_skipped(reading: ScriptedCluster) -> None:
    async with serving(reading) as client:
        await client.post("/models/default", json={"inputs": PAIR})
        reading.nodes[1].cut()
        try:
            for _ in range(3):
                assert (await client.post("/models/default", json={"inputs": PAIR})).json() == ADA
        finally:
            await reading.nodes[1].listen()


# The replies of the shards, the status and the kind of the problem, and the number of shards that the service asks. It
# sends a request that killed a worker to no other shard.
REFUSALS = (
    ("NOWORKER no worker", 503, "shard-unavailable", 3),
    ("OVERLOADED full", 503, "overloaded", 3),
    ("MODEL no reader on this shard", 503, "model", 3),
    ("WORKERLOST twice", 503, "shard-unavailable", 1),
    ("INFERENCE broken", 500, "inference", 1),
    ("TOOLONG inputs/0: context of 9 tokens", 413, "too-long", 1),
    ("ERR inputs/0: doc_stride", 422, "validation", 1),
)


async def test_the_error_is_returned_if_all_shards_refuse(reading: ScriptedCluster) -> None:
    async with serving(reading) as client:
        for text, status, kind, asked in REFUSALS:
            reading.triggers["qa.pipeline"] = refusal(text)
            before = reading.count("qa.pipeline")
            response = await client.post("/models/default", json={"inputs": PAIR})
            assert_problem(response, status, kind, text.partition(" ")[2])
            assert reading.count("qa.pipeline") - before == asked, text


async def test_a_deadline_ends_the_reading_on_the_shard(reading: ScriptedCluster) -> None:
    reading.triggers["qa.pipeline"] = never
    async with serving(reading) as client:
        # even on a busy machine, the longest timeout lets the request reach a shard
        for timeout_ms in (1000, 5000, 60_000):
            response = await client.post(f"/models/default?timeout_ms={timeout_ms}", json={"inputs": PAIR})
            assert_problem(response, 504, "deadline-exceeded", f" {timeout_ms} ms")
            if reading.count("qa.pipeline"):
                break
        await eventually_async(lambda: reading.cancelled == reading.count("qa.pipeline") == 1)


async def test_an_incomplete_body_times_out(reading: ScriptedCluster) -> None:
    async def begun() -> AsyncIterator[bytes]:
        yield b'{"inputs": '
        await asyncio.Future()

    async with service(reading.target(), body_timeout_ms=200) as (_, client):
        for method, path in (("POST", "/models/default"), ("PUT", "/documents/d"), ("POST", "/qa")):
            response = await client.request(method, path, content=begun(), headers=JSON)
            assert_problem(response, 408, "body-timeout", "within the limit of 200 ms (body_timeout_ms)")


async def test_the_limit_of_concurrent_requests_does_not_refuse_questions(reading: ScriptedCluster) -> None:
    reading.triggers["qa.pipeline"] = never
    target = reading.target(pipeline_max_requests=2)
    async with service(target) as (_, client):
        await client.put("/documents/d", json={"text": "Ada wrote it."})
        waiting = [
            asyncio.ensure_future(client.post("/models/default?timeout_ms=60000", json={"inputs": PAIR}))
            for _ in range(2)
        ]
        await eventually_async(lambda: reading.count("qa.pipeline") == 2)
        third = await client.post("/models/default", json={"inputs": PAIR})
        assert_problem(third, 503, "overloaded", "pipeline_max_requests")
        assert (await client.get("/qa", params={"question": "Who wrote it?"})).json()["answerable"]
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


async def test_a_shard_that_hangs_does_not_hide_the_models_of_the_others(reading: ScriptedCluster) -> None:
    hung = reading.nodes[1]

    async def some(node: Node, arguments: list[str]) -> list[bytes]:
        return await (never if node is hung else reading.models)(node, arguments)

    reading.triggers["qa.models"] = some
    async with serving(reading) as client:
        response = await client.get("/models")
        assert response.status_code == 200, response.text
        (model,) = response.json()["data"]
        assert (model["default"], model["warm"], model["shards"]) == (True, 2, 3)


async def test_the_openapi_description_has_parameters_and_limits(reading: ScriptedCluster) -> None:
    async with serving(reading) as client:
        description = (await client.get("/openapi.json")).json()
        operation = description["paths"]["/models/{id}"]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        parameters = schema["properties"]["parameters"]["properties"]
        assert set(parameters) == {
            "top_k", "doc_stride", "max_answer_len", "max_seq_len", "max_question_len",
            "handle_impossible_answer", "align_to_words", "padding",
        }  # fmt: skip
        assert (parameters["top_k"]["default"], parameters["top_k"]["maximum"]) == (1, 100)
        assert schema["properties"]["inputs"]["oneOf"][1]["maxItems"] == PipelineLimits().pairs
        assert {"200", "404", "413", "415", "422", "503", "504"} <= set(operation["responses"])
        assert "POST /models/{id}" in (await client.get("/docs")).text.replace("</code>", "")


async def test_the_rest_client_reads(reading: ScriptedCluster) -> None:
    async with rest_client(reading) as (_, client):
        assert await client.pipeline(PAIR) == ADA
        assert await client.pipeline([PAIR, PAIR], model="org/name@1", top_k=2) == [[ADA, ADA]] * 2
        with pytest.raises(NotFound, match="nobody"):
            await client.pipeline(PAIR, model="nobody")
        with pytest.raises(InvalidInput, match="top_k"):
            await client.pipeline(PAIR, top_k=0)
        with pytest.raises(InputTooLong, match="limit is 1000"):
            await client.pipeline({**PAIR, "question": "x" * 1001})


async def test_the_cluster_client_reads(reading: ScriptedCluster) -> None:
    async with AsyncClusterClient(reading.url) as client:
        assert await client.pipeline(PAIR) == ADA
        assert await client.pipeline([PAIR], model="org/name@1", top_k=2) == [[ADA, ADA]]
        with pytest.raises(InvalidInput, match="inputs/context is required"):
            await client.pipeline({"question": "Who?"})
        reading.triggers["qa.pipeline"] = never
        with pytest.raises(DeadlineExceeded):
            await client.pipeline(PAIR, timeout=0.2)
