"""`/v2`, the Open Inference Protocol: metadata, tensors in both forms, versions, errors, keys, and limits."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest

from qa_cluster.api.inference.requests import parse_inference
from qa_cluster.asking.questions import AskLimits
from qa_cluster.huggingface.request import PipelineLimits
from tests.api.keyed_requests import bearer, made
from tests.api.service_under_test import service, serving
from tests.api.test_models_route import read
from tests.client.scripted_cluster import ScriptedCluster, never, refusal
from tests.client.scripted_functions import manifest

INFER = "/v2/models/default/infer"
QUESTIONS, CONTEXTS = ["Who wrote it?", "Was war es?"], ["Ada wrote it.", "Žluťoučký kůň."]
OUTPUTS = ["answer", "score", "start", "end"]
LENGTH = "inference-header-content-length"


@pytest.fixture
def reading(cluster: ScriptedCluster) -> ScriptedCluster:
    cluster.triggers["qa.pipeline"] = read
    return cluster


def tensor(name: str, elements: list[Any], shape: list[int] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": "BYTES", "shape": shape or [len(elements)], "data": elements, **more}


def request(questions: list[Any] = QUESTIONS, contexts: list[Any] = CONTEXTS, **more: Any) -> dict[str, Any]:
    return {"inputs": [tensor("question", questions), tensor("context", contexts)], **more}


def encoded(texts: list[str]) -> bytes:
    return b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in texts)


def binary(document: dict[str, Any], *tensors: bytes) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of a request in the binary form."""
    head = json.dumps(document).encode()
    return b"".join((head, *tensors)), {LENGTH: str(len(head)), "content-type": "application/octet-stream"}


def binary_request(questions: list[str] = QUESTIONS, **more: Any) -> tuple[bytes, dict[str, str]]:
    tensors = {"question": encoded(questions), "context": encoded(CONTEXTS)}
    inputs = [
        {"name": name, "datatype": "BYTES", "shape": [2, 1], "parameters": {"binary_data_size": len(raw)}}
        for name, raw in tensors.items()
    ]
    return binary({"inputs": inputs, **more}, *tensors.values())


async def test_the_service_and_its_models_are_described(reading: ScriptedCluster) -> None:
    await reading.load(manifest("b", "org/name"))
    async with serving(reading) as client:
        server = (await client.get("/v2")).json()
        assert server["name"] == "qa-cluster" and server["extensions"] == ["binary_tensor_data"]
        assert (await client.get("/v2/health/live")).json() == {"live": True}
        assert (await client.get("/v2/health/ready")).json() == {"ready": True}
        index = (await client.post("/v2/repository/index")).json()
        assert [(entry["name"], entry["state"], entry["reason"]) for entry in index] == [
            ("scripted", "READY", ""),
            ("org/name", "READY", ""),
        ]
        assert (await client.post("/v2/repository/index", json={"ready": True})).json() == index
        for entry in index:
            for path in (entry["name"], f"{entry['name']}/versions/{entry['version']}"):
                found = (await client.get(f"/v2/models/{path}")).json()
                assert (found["name"], found["versions"]) == (entry["name"], [entry["version"]])
                assert [(each["name"], each["datatype"], each["shape"]) for each in found["inputs"]] == [
                    ("question", "BYTES", [-1]),
                    ("context", "BYTES", [-1]),
                ]
                assert {each["name"]: each["datatype"] for each in found["outputs"]} == {
                    "answer": "BYTES",
                    "score": "FP32",
                    "start": "INT64",
                    "end": "INT64",
                }
                ready = await client.get(f"/v2/models/{path}/ready")
                assert (ready.status_code, ready.json()) == (200, {"name": entry["name"], "ready": True})
        assert (await client.get("/v2/models/default")).json()["versions"] == [index[0]["version"]]
        assert (await client.get("/v2/models/org%2Fname")).json()["versions"] == [index[1]["version"]]
        for path in ("nothing", "default/versions/0", "default/versions/0/ready", "org/name/config"):
            missing = await client.get(f"/v2/models/{path}")
            assert missing.status_code == 404 and "is not loaded" in missing.json()["error"]


async def test_a_batch_as_json(reading: ScriptedCluster) -> None:
    async with serving(reading) as client:
        response = await client.post(INFER, json=request(id="a-1", model_name="default"))
        assert response.headers["content-type"] == "application/json" and LENGTH not in response.headers
        assert response.json() == {
            "model_name": "default",
            "model_version": "aaaaaaaaaaaa",
            "id": "a-1",
            "outputs": [
                {"name": "answer", "datatype": "BYTES", "shape": [2], "data": ["Ada", "Žluťoučký"]},
                {"name": "score", "datatype": "FP32", "shape": [2], "data": [0.5, 0.5]},
                {"name": "start", "datatype": "INT64", "shape": [2], "data": [0, 0]},
                {"name": "end", "datatype": "INT64", "shape": [2], "data": [3, 9]},
            ],
        }
        sent = json.loads(reading.calls[-1][1][2])
        pairs = zip(QUESTIONS, CONTEXTS, strict=True)
        assert sent["inputs"] == [{"question": question, "context": context} for question, context in pairs]
        nested = request()
        nested["inputs"][0] |= {"shape": [2, 1], "data": [[question] for question in QUESTIONS]}
        nested["outputs"] = [{"name": "end"}]
        nested["parameters"] = {
            "max_answer_len": 5,
            "handle_impossible_answer": True,
            "priority": 1,
            "timeout": 9000000,
        }
        wanted = (await client.post("/v2/models/org/name@1/infer", json=nested)).json()
        assert "id" not in wanted and wanted["model_version"] == "1"
        assert wanted["outputs"] == [{"name": "end", "datatype": "INT64", "shape": [2, 1], "data": [3, 9]}]
        sent = json.loads(reading.calls[-1][1][2])
        assert sent["parameters"] == {"max_answer_len": 5, "handle_impossible_answer": True}
        metrics = (await client.get("/metrics")).text
        assert "qa_pipeline_pairs_total 4" in metrics
        assert 'qa_http_requests_total{route="/v2/models/{id}",method="POST",status="200"} 2' in metrics


async def test_a_batch_in_the_binary_form(reading: ScriptedCluster) -> None:
    async with serving(reading) as client:
        body, headers = binary_request(parameters={"binary_data_output": True}, id="7")
        response = await client.post(INFER, content=body, headers=headers)
        assert response.headers["content-type"] == "application/octet-stream"
        size = int(response.headers[LENGTH])
        head, rest = json.loads(response.content[:size]), response.content[size:]
        assert head["id"] == "7" and [output["name"] for output in head["outputs"]] == OUTPUTS
        assert all(output["shape"] == [2, 1] and "data" not in output for output in head["outputs"])
        sizes = [output["parameters"]["binary_data_size"] for output in head["outputs"]]
        assert sum(sizes) == len(rest) and sizes[1:] == [8, 16, 16]
        assert rest[: sizes[0]] == encoded(["Ada", "Žluťoučký"])
        assert np.frombuffer(rest[sizes[0] : sizes[0] + 8], "<f4").tolist() == [0.5, 0.5]
        assert np.frombuffer(rest[sizes[0] + 8 :], "<i8").tolist() == [0, 0, 3, 9]
        # an output overrides the parameter of the request
        mixed = [{"name": "score", "parameters": {"binary_data": False}}, {"name": "end"}]
        body, headers = binary_request(parameters={"binary_data_output": True}, outputs=mixed)
        response = await client.post(INFER, content=body, headers=headers)
        size = int(response.headers[LENGTH])
        score, end = json.loads(response.content[:size])["outputs"]
        assert score["data"] == [0.5, 0.5] and end["parameters"] == {"binary_data_size": 16}
        # binary inputs, JSON outputs
        body, headers = binary_request()
        response = await client.post(INFER, content=body, headers=headers)
        assert response.json()["outputs"][0]["data"] == ["Ada", "Žluťoučký"]


async def test_a_version_is_a_revision(reading: ScriptedCluster) -> None:
    asked = []

    async def noted(node: Any, arguments: list[str]) -> Any:
        asked.append(arguments[1])
        return await read(node, [arguments[0], "", arguments[2]])

    reading.triggers["qa.pipeline"] = noted
    async with serving(reading) as client:
        for path in ("default", "default/versions/bb", "org/name/versions/1", "org/name@1/versions/1", "org%2Fname@1"):
            assert (await client.post(f"/v2/models/{path}/infer", json=request())).status_code == 200
    assert asked == ["", "scripted@bb", "org/name@1", "org/name@1", "org/name@1"]


PAIR = request()["inputs"]
BAD: list[tuple[Any, int, str]] = [
    (b"{", 400, "not JSON"),
    (b"[]", 400, "must be a JSON object, got a list"),
    ({}, 400, "inputs must be a list"),
    ({"inputs": []}, 400, "inputs must be a list"),
    ({"inputs": [1]}, 400, "inputs 'question' and 'context'"),
    ({"inputs": PAIR[:1]}, 400, "no tensor 'context'"),
    ({"inputs": [PAIR[0], PAIR[0]]}, 400, "'question' twice"),
    ({"inputs": [*PAIR, tensor("top_k", ["1"])]}, 400, "tensor 'top_k'"),
    ({"inputs": [PAIR[0] | {"datatype": "INT64"}, PAIR[1]]}, 400, "datatype 'INT64', but must have BYTES"),
    ({"inputs": [PAIR[0] | {"shape": [3]}, PAIR[1]]}, 400, "2 elements, but its shape has 3"),
    ({"inputs": [PAIR[0] | {"shape": [1, 2]}, PAIR[1]]}, 400, "shape [1, 2], but must have [N] or [N, 1]"),
    ({"inputs": [PAIR[0] | {"shape": [0]}, PAIR[1]]}, 400, "shape [0]"),
    ({"inputs": [PAIR[0] | {"shape": [True]}, PAIR[1]]}, 400, "shape"),
    ({"inputs": [PAIR[0] | {"data": None}, PAIR[1]]}, 400, "neither data nor the parameter binary_data_size"),
    ({"inputs": [PAIR[0] | {"parameters": {"shared_memory_region": "a"}}, PAIR[1]]}, 400, "'shared_memory_region'"),
    ({"inputs": [PAIR[0] | {"parameters": {"binary_data_size": 4}}, PAIR[1]]}, 400, "no header Inference-Header"),
    (request(["Who?"]), 400, "'question' has 1 elements and tensor 'context' has 2"),
    (request(["Who?", ""]), 400, "element 1 of tensor 'question' must not be empty"),
    (request(["Who?", 1]), 400, "element 1 of tensor 'question' must be a string, got an integer"),
    (request(["Who?"] * 4, ["x"] * 4), 413, "4 elements, the limit is 3"),
    (request(contexts=["x", "x" * 101]), 413, "element 1 of tensor 'context' has 101 characters, the limit is 100"),
    (request(id=7), 400, "id must be a string"),
    (request(parameters=[]), 400, "parameters of the request must be an object"),
    (request(parameters={"top_k": 2}), 400, "'top_k' is unknown"),
    (request(parameters={"doc_stride": "x"}), 400, "parameter doc_stride must be an integer"),
    (request(parameters={"timeout": -1}), 400, "timeout is -1, but must be from 1 to 600000000 microseconds"),
    (request(parameters={"binary_data_output": 1}), 400, "binary_data_output must be true or false"),
    (request(outputs={}), 400, "outputs must be a list"),
    (request(outputs=[{"name": "logits"}]), 400, "'logits', but the model has the outputs answer"),
    (request(outputs=[{"name": "end"}, {"name": "end"}]), 400, "'end' twice"),
    (request(outputs=[{"name": "end", "parameters": {"classification": 2}}]), 400, "'classification'"),
]


def binary_faults() -> list[tuple[bytes, dict[str, str], str]]:
    body, headers = binary_request()
    size = int(headers[LENGTH])
    document = json.loads(body[:size])
    short = {**document, "inputs": [document["inputs"][0] | {"shape": [1]}, document["inputs"][1]]}
    more = {**document, "inputs": [document["inputs"][0] | {"shape": [3]}, document["inputs"][1]]}
    tensors = body[size:]
    return [
        (body, headers | {LENGTH: "x"}, "'x', but must be the size of the JSON in bytes"),
        (body, headers | {LENGTH: str(len(body) + 1)}, f"at most the {len(body)} bytes"),
        (body, headers | {LENGTH: "9" * 20}, "must be the size"),
        (body, headers | {LENGTH: "5"}, "not JSON"),
        (body[:-1], headers, "left"),
        (body + b"x", headers, "the tensors have"),
        (*binary(short, tensors), "more elements, but its shape has 1"),
        (*binary(more, tensors), "2 elements, but its shape has 3"),
        (*binary(document, tensors.replace(encoded(QUESTIONS)[:4], b"\xff\xff\xff\xff", 1)), "longer than the rest"),
        (*binary(document, tensors.replace(b"Who", b"\xff\xfe\xfd")), "element 0 of tensor 'question' is not UTF-8"),
    ]


async def test_errors_have_the_form_of_the_protocol_and_nothing_is_sent(reading: ScriptedCluster) -> None:
    limits = PipelineLimits(pairs=3, question_chars=50, context_chars=100)
    async with serving(reading, body_max_bytes=4096, pipeline=limits) as client:

        async def refused(status: int, said: str, method: str, path: str, **more: Any) -> httpx.Response:
            response = await client.request(method, path, **more)
            assert response.status_code == status, (path, more, response.text)
            assert response.headers["content-type"] == "application/json"
            assert list(response.json()) == ["error"] and said in response.json()["error"], (more, response.text)
            return response

        for body, status, said in BAD:
            await refused(status, said, "POST", INFER, **({"content": body} if type(body) is bytes else {"json": body}))
        for content, headers, said in binary_faults():
            await refused(400, said, "POST", INFER, content=content, headers=headers)
        await refused(413, "4096", "POST", INFER, content=b" " * 5000)
        await refused(415, "text/plain", "POST", INFER, content=b"{}", headers={"content-type": "text/plain"})
        await refused(415, "gzip", "POST", INFER, content=b"{}", headers={"content-encoding": "gzip"})
        await refused(405, "supports POST", "GET", INFER)
        await refused(405, "supports GET, HEAD", "POST", "/v2/models/default", json={})
        await refused(405, "supports GET, HEAD", "POST", "/v2/health/live", json={})
        await refused(404, "no such route", "GET", "/v2/logging")
        await refused(404, "no model", "POST", "/v2/models//infer", json=request())
        await refused(404, "no version", "GET", "/v2/models/default/versions/")
        await refused(400, "UTF-8", "GET", "/v2/models/%ff")
        await refused(413, "the limit is 512", "GET", "/v2/models/" + "m" * 600)
        await refused(400, "must be empty", "POST", "/v2/repository/index", json={"ready": 1})
        assert not [call for call in reading.calls if call[1][0] == "qa.pipeline"]
        await refused(404, "nobody/has-it", "POST", "/v2/models/nobody/has-it/infer", json=request())
        reading.triggers["qa.pipeline"] = refusal("NOWORKER no worker")
        response = await refused(503, "no worker", "POST", INFER, json=request(parameters={"timeout": 300000}))
        assert int(response.headers["retry-after"]) >= 1
        reading.triggers["qa.pipeline"] = never
        await refused(504, "200 ms", "POST", INFER, json=request(parameters={"timeout": 200000}))


async def test_models_that_are_not_ready_are_reported_as_such(reading: ScriptedCluster) -> None:
    async def cold(node: Any, arguments: list[str]) -> list[bytes]:
        (found,) = await reading.models(node, arguments)
        return [json.dumps([{**each, "warm": False} for each in json.loads(found)]).encode()]

    async with serving(reading) as client:
        reading.triggers["qa.models"] = cold
        reading.functions.remove("qa.read")
        response = await client.get("/v2/health/ready")
        assert (response.status_code, response.json()) == (503, {"ready": False})
        response = await client.get("/v2/models/default/ready")
        assert (response.status_code, response.json()) == (503, {"name": "default", "ready": False})
        (entry,) = (await client.post("/v2/repository/index")).json()
        assert entry["state"] == "UNAVAILABLE" and "3 shards" in entry["reason"]
        assert (await client.post("/v2/repository/index", json={"ready": True})).json() == []


@pytest.mark.hostile
async def test_keys_and_their_limits_apply(reading: ScriptedCluster) -> None:
    async with service(reading.target()) as (app, client):
        _, asking = await made(app, "ask", limits=None)
        _, writing = await made(app, "write")
        for path in ("/v2", "/v2/health/live", "/v2/health/ready"):
            assert (await client.get(path)).status_code == 200
        for method, path in (("GET", "/v2/models/default"), ("POST", "/v2/repository/index"), ("POST", INFER)):
            content = json.dumps(request()) if path == INFER else ""
            for key, status in (("", 401), (writing, 403), (asking, 200)):
                response = await client.request(method, path, content=content, headers=bearer(key))
                assert response.status_code == status
                assert status == 200 or list(response.json()) == ["error"]


def test_a_truncated_binary_request_is_refused() -> None:
    body, headers = binary_request()
    for size in range(len(body)):
        with pytest.raises(Exception, match=r"\w") as refused:
            parse_inference(body[:size], headers[LENGTH].encode(), PipelineLimits(), AskLimits())
        assert type(refused.value).__name__ == "HttpProblem"
