"""Uses the service with Triton's client: ``python -m tests.adapters.kserve.triton_program PORT KEY``."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import numpy as np
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from tests.adapters.kserve.questions import CONTEXTS, QUESTIONS

OUTPUTS = ("answer", "score", "start", "end")


def inputs(questions: list[str], contexts: list[str], *, binary: bool = True, column: bool = False) -> list[Any]:
    """The tensors of questions and contexts."""
    made = []
    for name, texts in (("question", questions), ("context", contexts)):
        elements = np.array([text.encode() for text in texts], dtype=np.object_)
        elements = elements.reshape(-1, 1) if column else elements
        tensor = tritonclient.http.InferInput(name, list(elements.shape), "BYTES")
        tensor.set_data_from_numpy(elements, binary_data=binary)
        made.append(tensor)
    return made


def check(result: Any, shape: tuple[int, ...] = (3,)) -> None:
    """Check the answers: each is the text at its offsets, which count code points."""
    answers, scores, starts, ends = (result.as_numpy(name) for name in OUTPUTS)
    assert answers.shape == scores.shape == starts.shape == ends.shape == shape
    assert (scores.dtype, starts.dtype, ends.dtype) == (np.float32, np.int64, np.int64)
    found = [text if isinstance(text, str) else text.decode() for text in answers.ravel()]
    assert "Ada Lovelace" in found[0] and "Goethe" in found[1] and "dog" in found[2], found
    for text, context, start, end in zip(found, CONTEXTS, starts.ravel(), ends.ravel(), strict=True):
        assert context[start:end] == text, (context, start, end, text)
    assert ((scores > 0) & (scores <= 1.001)).all()
    print("   ", found, scores.ravel().round(3).tolist(), starts.ravel().tolist(), ends.ravel().tolist())


def main(port: str, key: str) -> None:
    """Run the checks."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{port}") as client:
        assert client.is_server_live() and client.is_server_ready()
        server = client.get_server_metadata()
        print("server:", server)
        index = client.get_model_repository_index(headers=dict(headers))
        print("index:", index)
        name, version = index[0]["name"], index[0]["version"]
        for model, revision in (("default", ""), (name, ""), (name, version)):
            assert client.is_model_ready(model, revision, headers=dict(headers))
            metadata = client.get_model_metadata(model, revision, headers=dict(headers))
            assert [each["name"] for each in metadata["outputs"]] == list(OUTPUTS)
            result = client.infer(
                model, inputs(QUESTIONS, CONTEXTS), revision, request_id=f"id-{model}", headers=dict(headers)
            )
            assert result.get_response()["id"] == f"id-{model}"
            assert result.get_response()["model_version"] == version
            assert "binary_data_size" in result.get_output("score")["parameters"]
            check(result)
        print("metadata:", metadata)
        print("JSON inputs, tensors of shape [n, 1], and outputs in the other form:")
        for binary in (True, False):
            wanted = [
                tritonclient.http.InferRequestedOutput(output, binary_data=binary != (number % 2 == 0))
                for number, output in enumerate(OUTPUTS)
            ]
            given = inputs(QUESTIONS, CONTEXTS, binary=binary, column=True)
            check(client.infer("default", given, outputs=wanted, headers=dict(headers), timeout=30_000_000), (3, 1))
        only = client.infer(
            "default",
            inputs(QUESTIONS[:1], CONTEXTS[:1]),
            outputs=[tritonclient.http.InferRequestedOutput("start")],
            headers=dict(headers),
            parameters={"handle_impossible_answer": True},
        )
        assert only.as_numpy("answer") is None and only.as_numpy("start").tolist() == [9]
        print("64 pairs in one request, and 8 requests at once:")
        many = client.infer("default", inputs(QUESTIONS[:1] * 64, CONTEXTS[:1] * 64), headers=dict(headers))
        assert len(set(many.as_numpy("answer").tolist())) == 1 and many.as_numpy("answer").shape == (64,)
        with tritonclient.http.InferenceServerClient(f"127.0.0.1:{port}", concurrency=8) as parallel:
            running = [
                parallel.async_infer("default", inputs(QUESTIONS, CONTEXTS), headers=dict(headers)) for _ in range(8)
            ]
            for request in running:
                check(request.get_result())
        errors(client, headers, key)
    asyncio.run(asynchronous(port, headers))
    print(f"tritonclient {tritonclient.http.__name__}: all is well")


def errors(client: Any, headers: dict[str, str], key: str) -> None:
    """Check that errors have the status and a text with advice."""
    wrong = inputs(QUESTIONS, CONTEXTS)
    cases = [
        ("404", "is not loaded", "nobody/has-it", inputs(QUESTIONS, CONTEXTS), headers),
        ("400", "both need the same number", "default", inputs(QUESTIONS, CONTEXTS[:1]), headers),
        ("400", "no tensor 'context'", "default", wrong[:1], headers),
        ("413", "the limit is 64", "default", inputs(QUESTIONS[:1] * 65, CONTEXTS[:1] * 65), headers),
        *([("401", "needs an API key", "default", wrong, {})] if key else []),
    ]
    for status, said, model, tensors, sent in cases:
        try:
            client.infer(model, tensors, headers=dict(sent))
        except InferenceServerException as error:
            assert error.status() == status and said in error.message(), (error.status(), error.message())
            print(f"    {status}: {error.message()}")
        else:
            raise AssertionError(f"{said}: no error")
    assert not client.is_model_ready("nobody/has-it", headers=dict(headers))


async def asynchronous(port: str, headers: dict[str, str]) -> None:
    """Check the asyncio client of Triton."""
    async with tritonclient.http.aio.InferenceServerClient(f"127.0.0.1:{port}") as client:
        assert await client.is_server_live() and await client.is_server_ready()
        assert await client.is_model_ready("default", headers=dict(headers))
        check(await client.infer("default", inputs(QUESTIONS, CONTEXTS), headers=dict(headers)))


if __name__ == "__main__":
    main(*sys.argv[1:])
