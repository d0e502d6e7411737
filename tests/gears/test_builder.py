"""The refusals of `GearsBuilder`, and their messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qa_cluster.gears.scripts.interface.builder import GearsBuilder
from qa_cluster.gears.shard.failures import GearsError
from tests.gears.scripts import script

NO_FUNCTION: Any = 1
NO_NUMBER: Any = "1"
UNTYPED: Any = GearsBuilder


async def coroutine_function(*_: Any) -> str:
    return "k"


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda: GearsBuilder("NoReader"), "reader does not exists"),
        (lambda: GearsBuilder().map(NO_FUNCTION), "argument must be a function"),
        (lambda: GearsBuilder().limit(NO_NUMBER), "argument must be a number"),
        (lambda: GearsBuilder().batchgroupby(str, coroutine_function), "coroutine are not allow on reduce"),
        (lambda: GearsBuilder("CommandReader").run(), "do not support run"),
        (lambda: GearsBuilder("CommandReader").register(), "no trigger or hook argument was given"),
        (lambda: GearsBuilder("PythonReader").run("x"), "pyreader argument must be a function"),
        (lambda: GearsBuilder().run(7), "regex argument must be a string"),
        (lambda: GearsBuilder("KeysOnlyReader").run(count=0), "count must be a whole number of at least 1"),
        (lambda: GearsBuilder("KeysOnlyReader").run(patternGenerator=1), "argument must be a function"),
        (lambda: GearsBuilder("ShardsIDReader").register(), "reader does not support register: ShardsIDReader"),
        (lambda: GearsBuilder("CommandReader").register(hook="get"), "hook= is left out: .*keymiss"),
        (lambda: GearsBuilder().register(mode="never"), "unknown mode"),
        (lambda: GearsBuilder().register(mode="sync"), "mode 'sync' is left out: use mode='async_local'"),
        (lambda: GearsBuilder("CommandReader").register(trigger="t", rights="root"), "unknown rights: 'root'"),
        (lambda: GearsBuilder().register(onRegistered=NO_FUNCTION), "argument must be a function"),
        (lambda: GearsBuilder().register(keyTypes=["strnig"]), "unknown key type: 'strnig'"),
        (lambda: GearsBuilder().run(noScan="yes"), "noScan must be True or False, got 'yes'"),
        (lambda: GearsBuilder("KeysOnlyReader").run(noScan=1), "noScan must be True or False, got 1"),
        (lambda: GearsBuilder().run(readValue=1), "readValue must be True or False, got 1"),
        (lambda: GearsBuilder().register(readValue="no"), "readValue must be True or False, got 'no'"),
        (lambda: GearsBuilder("StreamReader").run("s", fromId=7), "fromId must be the id of a stream's entry"),
        (lambda: GearsBuilder("StreamReader").run("s", fromId="last"), "fromId must be the id of a stream's entry"),
        (lambda: GearsBuilder("StreamReader").register(trimStream=0), "trimStream must be True or False, got 0"),
        (lambda: GearsBuilder("StreamReader").register(batch=0), "batch must be a whole number of at least 1, got 0"),
        (
            lambda: GearsBuilder("StreamReader").register(duration=-1),
            "duration must be a whole number of at least 0, got -1",
        ),
        (
            lambda: GearsBuilder("StreamReader").register(onFailedPolicy="stop"),
            "unknown onFailedPolicy: 'stop', must be one of continue, abort, retry",
        ),
        (
            lambda: GearsBuilder("StreamReader").register(onFailedRetryInterval="x"),
            "onFailedRetryInterval must be a whole number",
        ),
        (lambda: UNTYPED().map(), "wrong number of arguments for map"),
        (lambda: UNTYPED().map(str, str), "wrong number of arguments for map"),
        (lambda: UNTYPED(1, 2, 3, 4), "wrong number of arguments"),
        *[
            (
                lambda value=value: GearsBuilder("CommandReader").register(trigger="t", timeout=value),
                "timeout must be a whole number of milliseconds from 0",
            )
            for value in (-1, True, "1s", 86_400_001)
        ],
    ],
)
def test_misuse_is_refused(misuse: Callable[[], object], message: str) -> None:
    with pytest.raises(GearsError, match=message):
        misuse()


def test_one_run_per_script() -> None:
    with script():
        GearsBuilder().run()
        with pytest.raises(GearsError, match="Can not run more then 1 executions in a single script"):
            GearsBuilder().run()
