"""The trigger `qa.pipeline` answers like the local pipeline, lets questions run, and refuses bad requests."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from qa_cluster import keys, pipeline
from qa_cluster.config import SETTINGS
from qa_cluster.errors import InputTooLong, InvalidInput, QueueFull
from qa_cluster.gears.functions.answering import pipeline as on_shard
from qa_cluster.gears.functions.answering.pipeline import PipelineRequests
from qa_cluster.gears.functions.calls import TriggerCall
from qa_cluster.huggingface.pipeline import QuestionAnsweringPipeline
from tests.harness.polling import eventually

from .running_shards import Shards, tag

pytestmark = pytest.mark.one_server("the worker computes the reply")

ADA = "Ada Lovelace wrote the first program in 1843."
# About 2,000 tokens: 8 windows of 384 tokens with the default stride.
LONG = " ".join(
    f"In year {1000 + number} the town of Place{number} built its bridge over the river." for number in range(120)
)
PAIRS = [
    ("Who wrote the first program?", ADA),
    ("When?", ADA),
    ("Where was Frida Kahlo born?", "The painter Frida Kahlo was born in Coyoacán, near Mexico City 🎨."),
    ("In which year did Place77 build its bridge?", LONG),
]


@pytest.fixture(scope="module")
def local() -> QuestionAnsweringPipeline:
    return pipeline("question-answering", threads=1)


def trigger(shards: Shards, request: object, *, node: int = 0, model: str = "") -> dict[str, Any]:
    """Send a request in the name of a separate client. A shard limits the jobs of each client in the worker."""
    text = request if isinstance(request, str) else json.dumps(request)
    with shards.nodes[node].client(socket_timeout=120, client_name="pipeline") as client:
        (reply,) = client.execute_command("RG.TRIGGER", "qa.pipeline", model, text)
    return dict(json.loads(reply))


def inputs(pairs: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"question": question, "context": context} for question, context in pairs]


def close(ours: Any, theirs: Any) -> bool:
    left, right = (found if isinstance(found, list) else [found] for found in (ours, theirs))
    places = [[(one["start"], one["end"], one["answer"]) for one in found] for found in (left, right)]
    return places[0] == places[1] and all(
        one["score"] == pytest.approx(other["score"], abs=1e-3) for one, other in zip(left, right, strict=True)
    )


@pytest.mark.parametrize(
    "parameters",
    [{}, {"top_k": 3, "handle_impossible_answer": True}, {"max_seq_len": 64, "doc_stride": 10, "max_answer_len": 4}],
)
def test_a_shard_answers_as_the_local_pipeline(
    shards: Shards, local: QuestionAnsweringPipeline, parameters: dict[str, Any]
) -> None:
    reply = trigger(shards, {"inputs": inputs(PAIRS), "parameters": parameters})
    assert reply["model"] == local.reader.manifest.name
    expected = local(inputs(PAIRS), **parameters)
    for pair, ours, theirs in zip(PAIRS, reply["results"], expected, strict=True):
        assert close(ours, theirs), (pair, ours, theirs)


def test_every_shard_and_every_name_of_the_model_answer_the_same(
    shards: Shards, local: QuestionAnsweringPipeline
) -> None:
    manifest = local.reader.manifest
    request = {"inputs": inputs(PAIRS[:2])}
    replies = [trigger(shards, request, node=node) for node in range(len(shards.nodes))]
    replies += [trigger(shards, request, model=name) for name in (manifest.model_id, manifest.name)]
    assert all(reply == replies[0] for reply in replies)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ("{", "request is not JSON"),
        ([], "must be an object"),
        ({}, "inputs is required"),
        ({"inputs": []}, "must not be empty"),
        ({"inputs": [{"question": "Who?"}]}, "inputs/0/context is required"),
        ({"inputs": {"question": "Who?", "context": 5}}, "inputs/context must be a string, got integer"),
        ({"inputs": {"question": "Who?", "context": ADA}, "parameters": {"top_k": 0}}, "top_k must be from 1"),
        ({"inputs": {"question": "Who?", "context": ADA}, "parameters": {"topk": 1}}, "unknown parameter 'topk'"),
        ({"inputs": {"question": "who " * 600, "context": ADA}}, "inputs/0: question"),
        ({"inputs": {"question": "Who?", "context": LONG}, "parameters": {"doc_stride": 380}}, "doc_stride is 380"),
        (
            {"inputs": {"question": "Who?", "context": LONG}, "parameters": {"max_seq_len": 14, "doc_stride": 8}},
            "TOOLONG inputs/0: context of 1965 tokens",
        ),
    ],
)
def test_invalid_requests_are_refused(shards: Shards, request_: object, said: str) -> None:
    with pytest.raises(redis.ResponseError) as refused:
        trigger(shards, request_)
    assert said in str(refused.value), refused.value
    assert trigger(shards, {"inputs": inputs(PAIRS[:1])})["results"][0]["answer"] == "Ada Lovelace"


def test_a_missing_model_is_not_found(shards: Shards) -> None:
    with pytest.raises(redis.ResponseError, match=r"NOTFOUND model 'nobody/has-it' is not loaded"):
        trigger(shards, {"inputs": inputs(PAIRS[:1])}, model="nobody/has-it")


def test_a_question_does_not_wait_for_a_whole_article(shards: Shards) -> None:
    """While the worker reads long contexts, a sentence waits for one portion, not for all contexts."""
    shards.put("fair", ADA)
    shards.wait_tokenized("fair")
    number = shards.nodes.index(shards.node_of(keys.document_key("fair", tag("fair"))))
    request = json.dumps({"inputs": inputs([("In which year did Place77 build its bridge?", LONG * 4)])})
    article = threading.Thread(target=trigger, args=(shards, request), kwargs={"node": number})
    begun = time.monotonic()
    article.start()
    waits = []
    while article.is_alive() and len(waits) < 20:
        asked = time.monotonic()
        assert shards.ask("fair", 0, f"Who wrote program {len(waits)}?") is not None
        waits.append(time.monotonic() - asked)
    article.join()
    whole = time.monotonic() - begun
    assert len(waits) >= 5
    assert sorted(waits)[len(waits) // 2] < whole / 6, (waits, whole)


def test_tokenizing_many_short_contexts_does_not_delay_other_requests(shards: Shards) -> None:
    """The worker tokenizes all pairs except the last, refuses the last pair, and reads nothing."""
    pairs = [("Who?", f"{number} " + "漢字" * 3500) for number in range(120)]
    request = json.dumps({"inputs": inputs([*pairs, ("who " * 600, ADA)])})

    def refused() -> None:
        with pytest.raises(redis.ResponseError, match="inputs/120"):
            trigger(shards, request)

    long = threading.Thread(target=refused)
    begun = time.monotonic()
    long.start()
    waits = []
    while long.is_alive():
        asked = time.monotonic()
        shards.on(shards.nodes[0], "RG.TRIGGER", "qa.models")
        waits.append(time.monotonic() - asked)
    long.join()
    whole = time.monotonic() - begun
    # the median, because the machine may do other work during the longest wait
    assert len(waits) >= 5
    assert sorted(waits)[len(waits) // 2] < whole / 6, (waits, whole)


def requests_read_by(read: Any, monkeypatch: pytest.MonkeyPatch) -> PipelineRequests:
    """The pipeline requests of a shard with the reader `m`. The function `read` replaces the reading."""
    readers: Any = SimpleNamespace(named=lambda model: SimpleNamespace(manifest=SimpleNamespace(name="m")))
    nothing: Any = None
    requests = PipelineRequests(readers, nothing, nothing)
    monkeypatch.setattr(requests, "_results", read)
    return requests


async def test_a_shard_accepts_as_many_requests_as_a_service_can_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = asyncio.Event()

    async def read(*_: object) -> list[Any]:
        await free.wait()
        return []

    requests = requests_read_by(read, monkeypatch)
    request = json.dumps({"inputs": {"question": "?", "context": "x"}})
    most = SETTINGS["pipeline_max_requests"].maximum
    assert most is not None
    waiting = [asyncio.create_task(requests.on_pipeline(TriggerCall(["", request]))) for _ in range(int(most))]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull, match=f"this shard already has {most} pipeline requests, the limit"):
        await requests.on_pipeline(TriggerCall(["", request]))
    free.set()
    assert len(await asyncio.gather(*waiting)) == most


@pytest.mark.hostile
async def test_the_characters_of_all_requests_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    free = asyncio.Event()

    async def read(*_: object) -> list[Any]:
        await free.wait()
        return []

    requests = requests_read_by(read, monkeypatch)
    monkeypatch.setattr(on_shard, "MAX_CHARS", 100)

    def send(size: int) -> asyncio.Task[str]:
        request = {"inputs": {"question": "?", "context": "x" * (size - 1)}}
        return asyncio.create_task(requests.on_pipeline(TriggerCall(["", json.dumps(request)])))

    waiting = [send(60), send(40)]
    with pytest.raises(
        QueueFull, match=r"of 100 characters; this request has 2 more, and the limit of all requests together is 100"
    ):
        await send(2)
    free.set()
    await asyncio.gather(*waiting)
    with pytest.raises(InputTooLong, match="inputs have 101 characters, the limit of a request is 100: divide them"):
        await send(101)
    assert json.loads(await send(100)) == {"model": "m", "results": []}
    monkeypatch.setattr(on_shard, "MAX_JSON_CHARS", 140)
    with pytest.raises(InputTooLong, match="characters of JSON, the limit is 140"):
        await send(100)
    with pytest.raises(InvalidInput, match="request is not valid UTF-8"):
        await requests.on_pipeline(TriggerCall(["", b"{}"]))


def test_a_disconnect_cancels_the_reading(shards: Shards) -> None:
    long = inputs([("In which year did Place77 build its bridge?", LONG)])
    begun = time.monotonic()
    trigger(shards, {"inputs": long})
    one = time.monotonic() - begun
    request = json.dumps({"inputs": long * 40})
    with (
        shards.nodes[0].client(socket_timeout=0.5, retry=None) as client,
        pytest.raises(redis.TimeoutError),
    ):
        client.execute_command("RG.TRIGGER", "qa.pipeline", "", request)
    begun = time.monotonic()
    assert trigger(shards, {"inputs": inputs(PAIRS[:1])})["results"][0]["answer"] == "Ada Lovelace"
    assert time.monotonic() - begun < 30 * one
    eventually(lambda: shards.nodes[0].field("in_flight") == 0)
