"""Uses the service with KServe's client: ``python -m tests.adapters.kserve.kserve_program PORT KEY``."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httpx
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

from tests.adapters.kserve.questions import CONTEXTS, QUESTIONS


def request(
    questions: list[str], contexts: list[str], *, binary: bool, outputs: list[Any] | None = None, **parameters: Any
) -> Any:
    """A request with the tensors of questions and contexts."""
    tensors = []
    for name, texts in (("question", questions), ("context", contexts)):
        tensor = InferInput(name, [len(texts)], "BYTES")
        tensor.set_data_from_numpy(np.array([text.encode() for text in texts], dtype=np.object_), binary_data=binary)
        tensors.append(tensor)
    return InferRequest(
        "default", tensors, request_id="kserve-1", parameters=parameters or None, request_outputs=outputs
    )


def check(response: Any) -> None:
    """Check the answers: each is the text at its offsets, which count code points."""
    found = {output.name: output.as_numpy() for output in response.outputs}
    answers = [text if isinstance(text, str) else text.decode() for text in found["answer"]]
    assert response.id == "kserve-1" and response.model_name == "default"
    assert "Ada Lovelace" in answers[0] and "Goethe" in answers[1] and "dog" in answers[2], answers
    for text, context, start, end in zip(answers, CONTEXTS, found["start"], found["end"], strict=True):
        assert context[start:end] == text, (context, start, end, text)
    assert (found["score"].dtype, found["start"].dtype) == (np.float32, np.int64)
    print("   ", answers, found["score"].round(3).tolist(), found["start"].tolist(), found["end"].tolist())


async def main(port: str, key: str) -> None:
    """Run the checks."""
    url = f"http://127.0.0.1:{port}"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with InferenceRESTClient(RESTConfig(protocol="v2", timeout=120)) as client:
        assert await client.is_server_live(url) is True
        assert await client.is_server_ready(url) is True
        assert await client.is_model_ready(url, "default", headers=headers) is True
        assert await client.is_model_ready(url, "nobody/has-it", headers=headers) is False
        for binary in (False, True):
            for out in (False, True):
                print(f"{'binary' if binary else 'JSON'} inputs, {'binary' if out else 'JSON'} outputs:")
                made = request(QUESTIONS, CONTEXTS, binary=binary, binary_data_output=out)
                check(await client.infer(url, made, model_name="default", headers=dict(headers)))
        some = [RequestedOutput("end", parameters={"binary_data": True}), RequestedOutput("answer")]
        made = request(QUESTIONS, CONTEXTS, binary=True, outputs=some)
        found = await client.infer(url, made, model_name="default", headers=dict(headers))
        assert [output.name for output in found.outputs] == ["end", "answer"]
        for status, said, made in (
            (400, "both need the same number", request(QUESTIONS, CONTEXTS[:1], binary=False)),
            (413, "the limit is 64", request(QUESTIONS[:1] * 65, CONTEXTS[:1] * 65, binary=True)),
        ):
            try:
                await client.infer(url, made, model_name="default", headers=dict(headers))
            except httpx.HTTPStatusError as error:
                assert error.response.status_code == status and said in str(error), error
                print(f"    {error}")
            else:
                raise AssertionError(f"{said}: no error")
    print("kserve: all is well")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
