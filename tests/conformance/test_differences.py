"""Unusual behaviour of RedisAI and RedisGears. Each test asserts that qa-cluster behaves the same or differently."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from tests.conformance.deployment import Deployment, pairs
from tests.harness.polling import eventually

covers = pytest.mark.covers
ABORTED = "its registration was removed with ABORTPENDING"
SLOW = """
import asyncio
async def slow(record):
    await asyncio.sleep(float(record[1]))
    return record[2]
GB('CommandReader').map(slow).register(trigger='slow', mode='async_local', inorder={inorder}, convertToStr=False)
"""


def listed(deployment: Deployment, shard: int = 0) -> list[dict[str, Any]]:
    """The entries of `RG.DUMPEXECUTIONS`."""
    return [pairs(flat) for flat in deployment.raw("RG.DUMPEXECUTIONS", shard=shard)]


def of_scripts(deployment: Deployment, shard: int = 0) -> list[dict[str, Any]]:
    return [entry for entry in listed(deployment, shard) if not entry["registered"]]


@pytest.fixture(autouse=True)
def empty_lists(deployment: Deployment) -> None:
    """Empty the list of executions, which other tests may have filled."""
    for shard in range(deployment.shards):
        for entry in listed(deployment, shard):
            try:
                deployment.raw("RG.DROPEXECUTION", entry["executionId"], shard=shard)
            except redis.ResponseError as error:
                # the drop on another shard has already removed the execution
                assert "execution does not exist" in str(error)
        eventually(lambda shard=shard: not listed(deployment, shard))  # type: ignore[misc]


class Calls:
    """Calls of a trigger, each on a separate connection. `replies` has the replies and errors of completed calls."""

    def __init__(self, deployment: Deployment, *calls: tuple[Any, ...]) -> None:
        self.replies: dict[int, Any] = {}
        self._threads = []
        for number, call in enumerate(calls):
            client = redis.Redis(port=deployment.ports[0], decode_responses=True, socket_timeout=60)
            self._threads.append(threading.Thread(target=self._call, args=(client, number, call)))
            self._threads[-1].start()
            time.sleep(0.05)  # so that the calls arrive in order

    def _call(self, client: Any, number: int, call: tuple[Any, ...]) -> None:
        try:
            self.replies[number] = client.execute_command("RG.TRIGGER", *call)
        except redis.ResponseError as error:
            self.replies[number] = str(error)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)


@contextmanager
def called(deployment: Deployment, *calls: tuple[Any, ...]) -> Iterator[Calls]:
    started = Calls(deployment, *calls)
    yield started
    started.join()


# ---- Lists of executions ----


@covers("RG.DUMPEXECUTIONS", "a run with a waiting client: listed until it ends")
def test_a_blocking_run_leaves_the_list(deployment: Deployment) -> None:
    script = "import time\nGB('ShardsIDReader').map(lambda r: time.sleep(1)).count().run()"
    client = redis.Redis(port=deployment.ports[0], decode_responses=True, socket_timeout=60)
    replies: list[Any] = []
    thread = threading.Thread(target=lambda: replies.append(client.execute_command("RG.PYEXECUTE", script)))
    thread.start()
    for shard in range(deployment.shards):
        eventually(lambda shard=shard: of_scripts(deployment, shard))  # type: ignore[misc]
    thread.join(60)
    assert replies == [[[str(deployment.shards)], []]]
    for shard in range(deployment.shards):
        eventually(lambda shard=shard: not of_scripts(deployment, shard))  # type: ignore[misc]
    # a run that fails leaves the list, too
    deployment.raw("RG.PYEXECUTE", "GB('ShardsIDReader').map(lambda r: 1 / 0).run()")
    assert of_scripts(deployment) == []


@covers("RG.DUMPEXECUTIONS", "calls in the module's queue", differs="not listed; RedisGears listed them as `created`")
def test_queued_calls_are_not_listed(deployment: Deployment) -> None:
    deployment.raw("RG.PYEXECUTE", SLOW.format(inorder=True))
    with called(deployment, ("slow", 1, "a"), ("slow", 0, "b"), ("slow", 0, "c")) as calls:
        assert len(listed(deployment)) == 1
        assert deployment.statistics()["numTriggered"] == 3
    assert calls.replies == {0: ["a"], 1: ["b"], 2: ["c"]}


@covers(
    "RG.ABORTEXECUTION",
    "an execution that runs",
    differs="it ends as `aborted` with one error, and numAborted counts it; in RedisGears it ended as `done` with one "
    "error",
)
def test_the_end_of_an_aborted_execution(deployment: Deployment) -> None:
    deployment.raw("RG.PYEXECUTE", SLOW.format(inorder=False))
    with called(deployment, ("slow", 60, "a")) as calls:
        (entry,) = eventually(lambda: [entry for entry in listed(deployment) if entry["status"] == "running"])
        deployment.raw("RG.ABORTEXECUTION", entry["executionId"])
    assert calls.replies == {0: "execution was aborted"}
    (entry,) = listed(deployment)
    assert entry["status"] == "aborted"
    assert deployment.raw("RG.GETRESULTS", entry["executionId"])[1] == ["execution was aborted"]
    data = eventually(lambda: _counted(deployment, "numAborted"))
    assert (data["numAborted"], data["numFailures"]) == (1, 0)


@covers("RG.ABORTEXECUTION", "an execution that has not begun: `aborted`, in numAborted")
def test_a_pending_execution_is_aborted(deployment: Deployment) -> None:
    with _held_threads(deployment):
        with called(deployment, ("quick", "a")) as calls:
            (entry,) = eventually(lambda: [entry for entry in listed(deployment) if entry["status"] == "created"])
            deployment.raw("RG.ABORTEXECUTION", entry["executionId"])
            eventually(lambda: calls.replies == {0: "execution was aborted"})
        (entry,) = [found for found in listed(deployment) if found["executionId"] == entry["executionId"]]
        assert entry["status"] == "aborted"
        (data,) = [
            found["RegistrationData"]
            for found in deployment.registrations()
            if pairs(found["RegistrationData"]["args"])["trigger"] == "quick"
        ]
        assert (data["numTriggered"], data["numAborted"], data["numFailures"]) == (1, 1, 0)


def _counted(deployment: Deployment, name: str) -> dict[str, Any] | None:
    data = deployment.statistics()
    return data if data[name] else None


@contextmanager
def _held_threads(deployment: Deployment) -> Iterator[None]:
    """Keep all threads for clients busy, so that calls of the trigger `quick` wait for a thread."""
    threads = int(deployment.raw("CONFIG", "GET", "qa.function-threads")[1])
    key = deployment.key("go")
    script = f"""
import time
def hold(record):
    while not execute('EXISTS', '{key}'):
        time.sleep(0.01)
for name in ('hold1', 'hold2'):
    GB('CommandReader').foreach(hold).register(trigger=name, mode='async_local')
GB('CommandReader').map(lambda r: r[1]).register(trigger='quick', mode='async_local')
"""
    deployment.raw("RG.PYEXECUTE", script)
    half = (threads + 1) // 2
    holding = Calls(deployment, *[(f"hold{number}",) for number in (1, 2) for _ in range(half)])
    try:
        eventually(lambda: sum(entry["status"] == "running" for entry in listed(deployment)) == threads)
        yield
    finally:
        deployment.raw("SET", key, 1)
        holding.join()


# ---- RG.UNREGISTER ----


def registered(deployment: Deployment, trigger: str) -> str:
    (found,) = [
        entry["id"]
        for entry in deployment.registrations()
        if pairs(entry["RegistrationData"]["args"]).get("trigger") == trigger
    ]
    return str(found)


@covers("RG.UNREGISTER", "ABORTPENDING: aborts what has not begun, not what runs")
def test_abortpending(deployment: Deployment) -> None:
    deployment.raw("RG.PYEXECUTE", SLOW.format(inorder=True))
    name = registered(deployment, "slow")
    with called(deployment, ("slow", 1, "a"), ("slow", 0, "b"), ("slow", 0, "c")) as calls:
        assert deployment.raw("RG.UNREGISTER", name, "ABORTPENDING") == "OK"
        eventually(lambda: len(calls.replies) == 2)
        assert 0 not in calls.replies
    assert calls.replies[0] == ["a"]
    assert all(ABORTED in calls.replies[number] for number in (1, 2))
    eventually(lambda: not listed(deployment))


@covers("RG.UNREGISTER", "ABORTPENDING: aborted executions leave the list")
def test_abortpending_of_created_executions(deployment: Deployment) -> None:
    with _held_threads(deployment):
        with called(deployment, ("quick", "a"), ("quick", "b")) as calls:
            eventually(lambda: sum(entry["status"] == "created" for entry in listed(deployment)) == 2)
            deployment.raw("RG.UNREGISTER", registered(deployment, "quick"), "ABORTPENDING")
        assert all(ABORTED in reply for reply in calls.replies.values())
        assert {entry["status"] for entry in listed(deployment)} == {"running"}


@covers("RG.UNREGISTER", "sent by a trigger of this registration, which then answers")
@pytest.mark.parametrize("option", ["", ", 'ABORTPENDING'"])
def test_a_trigger_unregisters_itself(deployment: Deployment, option: str) -> None:
    script = f"""
def leave(record):
    return execute('RG.UNREGISTER', record[1]{option})
GB('CommandReader').map(leave).register(trigger='leave', mode='async_local', rights='owner')
"""
    deployment.raw("RG.PYEXECUTE", script)
    assert deployment.raw("RG.TRIGGER", "leave", registered(deployment, "leave")) == ["OK"]
    eventually(lambda: not deployment.registrations())
    eventually(lambda: not listed(deployment))


@covers(
    "RG.UNREGISTER",
    "calls in the module's queue",
    differs="they end with an error that asks to try again; in RedisGears they ran",
)
def test_unregister_with_queued_calls(deployment: Deployment) -> None:
    deployment.raw("RG.PYEXECUTE", SLOW.format(inorder=True))
    with called(deployment, ("slow", 1, "a"), ("slow", 0, "b")) as calls:
        deployment.raw("RG.UNREGISTER", registered(deployment, "slow"))
    assert calls.replies[0] == ["a"]
    assert "TRYAGAIN the registration" in calls.replies[1]


# ---- Futures ----

COLLECTED = """
waiting = []
def collect(record):
    future = gearsFuture()
    waiting.append(future)
    return future
def go(record):
    count = len(waiting)
    if count == int(record[1]):
        for future in waiting:
            future.continueRun(1)
    return count
numbers = lambda r: list(map(str, range(int(r[1]))))
GB('CommandReader').flatmap(numbers).map(collect).count().register(trigger='map', mode='async_local')
GB('CommandReader').flatmap(numbers).filter(collect).count().register(trigger='filter', mode='async_local')
GB('CommandReader').map(go).register(trigger='go', mode='async_local')
"""


@covers("redisgears", "gearsFuture: two triggers with 10,000 futures each, continued together")
def test_many_futures(deployment: Deployment) -> None:
    deployment.raw("RG.PYEXECUTE", COLLECTED)
    with called(deployment, ("map", 10_000), ("filter", 10_000)) as calls:
        eventually(lambda: deployment.raw("RG.TRIGGER", "go", 20_000) == ["20000"])
    assert calls.replies == {0: ["10000"], 1: ["10000"]}


@covers("GearsBuilder", "groupby: its futures run one after the other, also those of different keys")
def test_futures_of_a_group_by(deployment: Deployment) -> None:
    script = """
import threading
running = [0, 0]
def add(key, accumulator, record):
    running[0] += 1
    running[1] = max(running)
    future = gearsFuture()
    def later():
        running[0] -= 1
        future.continueRun((accumulator or 0) + 1)
    threading.Timer(0.001, later).start()
    return future
def most(record):
    return [record['value'], running[1]]
GB('CommandReader').flatmap(lambda r: list(range(20))).localgroupby(lambda n: n % 4, add).map(most).register(
    trigger='groups', mode='async_local', convertToStr=False)
"""
    deployment.raw("RG.PYEXECUTE", script)
    assert deployment.raw("RG.TRIGGER", "groups") == [[5, 1]] * 4


@covers(
    "redisgears",
    "gearsFuture: continued before the step returns it",
    differs="the run continues; RedisGears raised an error",
)
def test_a_future_that_is_continued_early(deployment: Deployment) -> None:
    script = """
def early(record):
    future = gearsFuture()
    future.continueRun('early')
    return future
GB('ShardsIDReader').map(early).run(mode='async_local')
"""
    assert deployment.raw("RG.PYEXECUTE", script) == [["early"], []]


@covers(
    "GearsBuilder",
    "accumulate: a function that creates a future and returns another value",
    differs="the value counts; RedisGears continued with None",
)
def test_a_future_that_is_not_returned(deployment: Deployment) -> None:
    script = """
def add(accumulator, record):
    gearsFuture()
    return 7
GB('ShardsIDReader').accumulate(add).run(mode='async_local')
"""
    assert deployment.raw("RG.PYEXECUTE", script) == [["7"], []]


# ---- Order and state ----


@covers(
    "GearsBuilder",
    "flatmap: the order of the items",
    differs="the order of the list; RedisGears took a list from its end, so `limit(1, 3)` kept another item",
)
def test_order_of_a_flatmap(deployment: Deployment) -> None:
    key = deployment.key("l")
    deployment.raw("LPUSH", key, 1, 2, 3, 4, 5)
    assert deployment.raw("LRANGE", key, 0, -1) == [*"54321"]
    run = f"run('{key}', mode='async_local')"
    (items, _) = deployment.raw("RG.PYEXECUTE", f"GB().flatmap(lambda r: r['value']).{run}")
    assert items == [*"54321"]
    assert deployment.raw("RG.PYEXECUTE", f"GB().flatmap(lambda r: r['value']).limit(1, 3).{run}") == [["2"], []]


@covers(
    "redisgears",
    "globals after DEBUG RELOAD",
    differs="they keep their values until the worker ends; RedisGears reset them",
)
def test_globals_after_a_reload(deployment: Deployment) -> None:
    script = """
calls = [0]
def count(record):
    calls[0] += 1
    return calls[0]
GB('CommandReader').map(count).register(trigger='count', mode='async_local')
"""
    deployment.raw("RG.PYEXECUTE", script)
    assert deployment.raw("RG.TRIGGER", "count") == ["1"]
    deployment.raw("DEBUG", "RELOAD")
    assert eventually(lambda: deployment.raw("RG.TRIGGER", "count")) == ["2"]


@covers(
    "GearsBuilder",
    "StreamReader: numTriggered with trimStream=False",
    differs="the number of batches; RedisGears counted one run more",
)
def test_runs_of_a_stream_that_is_not_trimmed(deployment: Deployment) -> None:
    stream = deployment.key("s")
    deployment.raw("RG.PYEXECUTE", f"GB('StreamReader').register('{stream}', trimStream=False, mode='async_local')")
    for number in range(3):
        deployment.raw("XADD", stream, "*", "n", number)
        eventually(lambda number=number: deployment.statistics()["numSuccess"] == number + 1)  # type: ignore[misc]
    assert deployment.raw("XLEN", stream) == 3
    assert deployment.statistics()["numTriggered"] == 3


# ---- Small replies ----


@covers("RG.PYDUMPSESSIONS", "the value of `dead`", differs="the integer 0 or 1")
def test_value_of_dead(deployment: Deployment) -> None:
    deployment.raw("RG.PYEXECUTE", "GB('CommandReader').register(trigger='t', mode='async_local')", "ID", "s")
    (session,) = [pairs(flat) for flat in deployment.raw("RG.PYDUMPSESSIONS", "SESSIONS", "s")]
    assert session["dead"] == 0


@covers(
    "RG.CONFIGSET",
    "DependenciesSha256",
    differs="stored like a user's own key, without effect; RedisGears refused it",
)
def test_setting_of_downloads(deployment: Deployment) -> None:
    stored = deployment.raw("RG.CONFIGSET", "DependenciesSha256", "/")
    assert stored == ["OK - value was saved in extra config dictionary"]
    assert deployment.raw("RG.CONFIGGET", "DependenciesSha256") == ["/"]


@covers(
    "AI.TENSORSET",
    "type STRING: a blob without its last NUL",
    differs="accepted, and the NUL is added; RedisAI refused it",
)
def test_blob_of_strings(deployment: Deployment) -> None:
    key = deployment.key("t")
    assert deployment.raw("AI.TENSORSET", key, "STRING", 2, "BLOB", b"a\0b") == "OK"
    assert deployment.raw("AI.TENSORGET", key, "VALUES") == ["a", "b"]
    assert deployment.raw("AI.TENSORGET", key, "BLOB") == "a\0b\0"


@covers(
    "INFO",
    "versions of the backends: RedisAI's names with the prefix qa_",
    differs="`qa_ai_onnxruntime_version`, and `qa_ai_Torch_version` if the worker has torch; fields about the memory "
    "of ONNX Runtime are missing",
)
def test_versions_of_backends(deployment: Deployment) -> None:
    info = deployment.nodes[0].info("everything")
    assert str(info["qa_ai_onnxruntime_version"])[0].isdigit()
    assert ("qa_ai_Torch_version" in info) == deployment.torch
    assert not [name for name in info if name.startswith("qa_ai_onnxruntime_m")]
