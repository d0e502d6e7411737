"""redgrease: functions with its readers and operations, which the client sends as cloudpickle, run on all shards."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import pytest
import redgrease
import redis
from redgrease import utils
from redgrease.reader import KeysOnlyReader, KeysReader, PythonReader, ShardsIDReader, StreamReader
from redgrease.runtime import GB, GearsBuilder

from tests.conformance.deployment import Deployment

covers = pytest.mark.covers
# the worker cannot import this module, so cloudpickle sends the functions by value
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def run(deployment: Deployment) -> Iterator[Callable[..., Any]]:
    """A function that runs a redgrease function on the first shard, with numbers 0..29 in keys `n:..` of all shards."""
    if not deployment.same_python:
        pytest.skip("redgrease sends code objects, so it needs the Python version of the worker")
    for number in range(30):
        shard = number % deployment.shards
        deployment.raw("SET", deployment.key(f"n:{number}:", shard), number, shard=shard)

    def execute(function: Any, **options: Any) -> Any:
        result = function.on(deployment.gears(), **options)
        assert not result.errors, result.errors
        return result.value

    yield execute


def numbers() -> Any:
    """A redgrease function that reads the numbers of `run`."""
    return KeysReader("n:*").values(type="string").map(int)


@covers("redgrease", "GearFunction.run().on(), results as Python objects")
@covers("GearsBuilder", "KeysReader: run", "map", "run: collect, convertToStr")
def test_keys_reader(deployment: Deployment, run: Callable[..., Any]) -> None:
    assert sorted(run(numbers().run())) == list(range(30))
    keys = run(KeysReader("n:*").keys().run())
    assert len(keys) == 30
    records = run(KeysReader().records(type="string").map(lambda r: (r.key, r.value, r.type, r.event)).run("n:7:*"))
    assert records == (deployment.key("n:7:", 7 % deployment.shards), "7", "string", "")
    # with `async_local`, the result has only the keys of one shard
    local = run(KeysReader("n:*").keys().run(mode="async_local"))
    assert len(local) == 30 // deployment.shards


@covers("GearsBuilder", "KeysReader: hashes, lists, other types, readValue, noScan")
def test_kinds_of_values(deployment: Deployment, run: Callable[..., Any]) -> None:
    deployment.raw("HSET", deployment.key("v:hash"), "field", "value")
    deployment.raw("RPUSH", deployment.key("v:list"), "a", "b")
    deployment.raw("ZADD", deployment.key("v:zset"), 1, "a")
    deployment.raw("SET", deployment.key("v:bytes"), b"\xff\xfe")
    found = run(KeysReader("v:*").map(lambda r: (r["type"], r["value"])).run())
    values = dict(found)
    assert values["hash"] == {"field": "value"}
    assert values["list"] == ["a", "b"]
    assert values["zset"] is None
    assert bytes(values["string"]) == b"\xff\xfe"
    bare = run(KeysReader().map(sorted).run("v:hash*", readValue=False))
    assert "value" not in bare
    exact = run(KeysReader().map(lambda r: r["value"]).run(deployment.key("v:list"), noScan=True, mode="async_local"))
    assert exact == ["a", "b"]


@covers("GearsBuilder", "filter", "flatmap", "foreach", "limit")
def test_local_operations(deployment: Deployment, run: Callable[..., Any]) -> None:
    assert sorted(run(numbers().filter(lambda n: n % 10 == 0).run())) == [0, 10, 20]
    assert sorted(run(numbers().filter(lambda n: n < 2).flatmap(lambda n: [n, n + 100]).run())) == [0, 1, 100, 101]
    key = deployment.key("seen")

    def store(number: int) -> None:
        redgrease.execute("SADD", key, number)

    if deployment.shards == 1:
        assert run(numbers().filter(lambda n: n < 3).foreach(store).count().run()) == 3
        assert deployment.raw("SCARD", key) == 3
    assert len(run(numbers().limit(4).run())) == 4
    assert len(run(numbers().limit(4, start=28).run())) in (2, 4) if deployment.shards == 1 else True


@covers("GearsBuilder", "accumulate", "aggregate", "count", "avg", "sort", "distinct")
def test_whole_results(deployment: Deployment, run: Callable[..., Any]) -> None:
    def add(total: Any, number: int) -> int:
        return (total or 0) + number

    assert run(numbers().accumulate(add).collect().accumulate(add).run()) == 435
    assert run(numbers().aggregate(0, operator.add, operator.add).run()) == 435
    assert run(numbers().count().run()) == 30
    assert run(numbers().avg().run()) == 14.5
    assert run(numbers().sort().run()) == list(range(30))
    assert run(numbers().sort(reverse=False).run()) == list(range(29, -1, -1))
    assert sorted(run(numbers().map(lambda n: n % 3).distinct().run())) == [0, 1, 2]


@covers("GearsBuilder", "groupby", "batchgroupby", "localgroupby", "aggregateby", "countby", "repartition", "collect")
def test_groups(deployment: Deployment, run: Callable[..., Any]) -> None:
    def by_parity(number: int) -> str:
        return "even" if number % 2 == 0 else "odd"

    def total(_key: str, total: Any, number: int) -> int:
        return (total or 0) + number

    wanted = {"even": 210, "odd": 225}

    def pairs(groups: list[dict[str, Any]]) -> dict[str, Any]:
        return {group["key"]: group["value"] for group in groups}

    assert pairs(run(numbers().groupby(by_parity, total).run())) == wanted
    assert pairs(run(numbers().batchgroupby(by_parity, lambda _key, records: sum(records)).run())) == wanted
    parts = run(numbers().localgroupby(by_parity, total).run())
    assert sum(part["value"] for part in parts if part["key"] == "even") == 210
    assert pairs(run(numbers().aggregateby(by_parity, 0, total, total).run())) == wanted
    assert pairs(run(numbers().countby(by_parity).run())) == {"even": 15, "odd": 15}
    assert sorted(run(numbers().repartition(by_parity).run())) == list(range(30))
    assert sorted(run(numbers().collect().run())) == list(range(30))


@covers("GearsBuilder", "KeysOnlyReader: run")
def test_keys_only_reader(deployment: Deployment, run: Callable[..., Any]) -> None:
    assert len(run(KeysOnlyReader("n:*").run())) == 30
    key = deployment.key("n:0:")
    assert run(KeysOnlyReader().run(key, noScan=True, mode="async_local")) == key

    def generate() -> tuple[str, bool]:
        return "n:1*", False

    assert len(run(KeysOnlyReader().run(patternGenerator=generate))) == 11


@covers("GearsBuilder", "ShardsIDReader: run")
def test_shards_id_reader(deployment: Deployment, run: Callable[..., Any]) -> None:
    found = run(ShardsIDReader().run())
    if deployment.shards == 1:
        assert found == "1"
    else:
        assert sorted(found) == sorted(node.execute_command("CLUSTER MYID") for node in deployment.nodes)


@covers("GearsBuilder", "PythonReader: run")
def test_python_reader(deployment: Deployment, run: Callable[..., Any]) -> None:
    def generate() -> Iterator[int]:
        yield from range(3)

    assert sorted(run(PythonReader().run(generate))) == sorted([0, 1, 2] * deployment.shards)


@covers("GearsBuilder", "StreamReader: run, fromId")
def test_stream_reader(deployment: Deployment, run: Callable[..., Any]) -> None:
    stream = deployment.key("stream")
    ids = [deployment.raw("XADD", stream, "*", "n", number) for number in range(3)]
    values = run(StreamReader().values().run(stream, mode="async_local"))
    assert values == [{"n": "0"}, {"n": "1"}, {"n": "2"}]
    assert run(StreamReader().records().map(lambda r: r.id).run(stream, mode="async_local")) == ids
    assert run(StreamReader().keys().run(stream, fromId=ids[1], mode="async_local")) == stream


@covers("GearsBuilder", "coroutines in map, filter, flatmap, foreach, accumulate and groupby")
def test_coroutines(run: Callable[..., Any]) -> None:
    async def double(number: int) -> int:
        import asyncio

        await asyncio.sleep(0.001)
        return number * 2

    async def small(number: int) -> bool:
        return number < 6

    async def add(total: Any, number: int) -> int:
        return (total or 0) + number

    assert sorted(run(numbers().map(double).filter(small).run())) == [0, 2, 4]
    assert run(numbers().accumulate(add).collect().accumulate(add).run()) == 435


@covers("redgrease", "GearsBuilder of the client")
def test_builder_of_the_client(deployment: Deployment, run: Callable[..., Any]) -> None:
    builder = GearsBuilder("KeysReader", desc="counts")
    builder.map(lambda r: int(r["value"])).filter(lambda n: n >= 20).map(lambda n: n - 20).sort()
    assert run(builder.run("n:*")) == list(range(10))
    assert run(GB("KeysReader", "n:*").count().run()) == 30
    result = deployment.gears().pyexecute(GB("KeysReader", "n:*").count())
    assert result.value == 30


@covers("redgrease", "GearsBuilder of the client: every operation")
def test_operations_of_the_builder(deployment: Deployment, run: Callable[..., Any]) -> None:
    def add(total: Any, number: int) -> int:
        return (total or 0) + number

    def add_of_key(_key: str, total: Any, number: int) -> int:
        return (total or 0) + number

    def values() -> GearsBuilder:
        return GB("KeysReader", "n:*").map(lambda r: int(r["value"]))

    def summed(groups: list[dict[str, Any]]) -> int:
        return sum(group["value"] for group in groups)

    def parity(number: int) -> int:
        return number % 2

    assert len(run(values().flatmap(lambda n: [n, n]).run())) == 60
    assert run(values().foreach(lambda n: None).accumulate(add).collect().accumulate(add).run()) == 435
    assert len(run(values().limit(3).run())) == 3
    assert run(values().aggregate(0, add, add).run()) == 435
    assert run(values().avg().run()) == 14.5
    assert sorted(run(values().map(parity).distinct().run())) == [0, 1]
    assert len(run(values().repartition(parity).run())) == 30
    assert summed(run(values().groupby(parity, add_of_key).run())) == 435
    assert summed(run(values().localgroupby(parity, add_of_key).run())) == 435
    assert summed(run(values().batchgroupby(parity, lambda _key, records: sum(records)).run())) == 435
    assert summed(run(values().aggregateby(parity, 0, add_of_key, add_of_key).run())) == 435
    assert summed(run(values().countby(parity).run())) == 30
    assert values().gearfunction.reader == "KeysReader"
    registered = GB("CommandReader").map(lambda r: r[1] * 2).register(trigger="double", mode="async_local")
    assert registered.on(deployment.gears())("a").value == "aa"


@covers("redgrease", "unblocking=True, requirements")
def test_unblocking(deployment: Deployment, run: Callable[..., Any]) -> None:
    execution = run(numbers().count().run(), unblocking=True)
    assert deployment.gears().getresultsblocking(execution).value == 30
    assert run(numbers().count().run(requirements=["numpy"])) == 30


@covers("redgrease", "errors in functions")
def test_errors(deployment: Deployment, run: Callable[..., Any]) -> None:
    del run
    result = numbers().map(lambda n: 10 // (n - 5)).run().on(deployment.gears())
    assert len(result.value) == 29
    assert len(result.errors) == 1
    assert b"ZeroDivisionError" in result.errors[0]


@covers("redgrease", "helpers: record, compose, dict_filter")
def test_helpers(run: Callable[..., Any]) -> None:
    wanted = KeysReader("n:*").filter(utils.dict_filter(type="string")).map(utils.record).map(lambda r: int(r.value))
    assert sorted(run(wanted.filter(lambda n: n < 2).run())) == [0, 1]


@covers("GearsBuilder", "errors")
@pytest.mark.parametrize(
    ("script", "text"),
    [
        # tests/gears/test_builder.py has the other errors
        ("GB('KeysReader').map(1).run()", "argument must be a function"),
        (
            "async def k(r): return 1\nGB('ShardsIDReader').groupby(k, lambda k, a, r: r).run()",
            "coroutine are not allow on extractor",
        ),
    ],
)
def test_refused(deployment: Deployment, script: str, text: str) -> None:
    # the error occurs when the function is built, or at the first record
    try:
        reply = deployment.raw("RG.PYEXECUTE", script)
    except redis.ResponseError as error:
        reply = error
    assert text in str(reply)
