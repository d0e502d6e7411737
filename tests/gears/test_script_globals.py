"""Scripts and their functions on every shard find the names of RedisGears without imports."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.servers import Server, execute

# Each expression must be true in scripts and in functions, without any import.
EXPRESSIONS = {
    "redisgears": "redisgears.executeCommand('ECHO', 'x') == 'x' and redisgears.getMyHashTag() is not None",
    "rg": "rg.execute('ECHO', 'x') == redisgears.executeCommand('ECHO', 'x')",
    "copy": "copy.deepcopy([[1]]) == [[1]]",
    "io": "io.StringIO('a').read() == 'a'",
    "time": "time.time() > 0",
    "Thread": "Thread(target=lambda: None).is_alive() is False",
    "Future": "issubclass(Future, asyncio.Future)",
    "asyncio": "asyncio.iscoroutinefunction(print) is False",
    "redisAI": "callable(redisAI.createModelRunner)",
    "GB": "GB is GearsBuilder is redisgears.GearsBuilder",
    "executeCommand": "executeCommand('ECHO', 'x') == execute('ECHO', 'x')",
    "atomic": "atomic().__enter__ is not None and isInAtomicBlock() is False and redgears_names",
    "hashtag": "hashtag() == redgears('getMyHashTag')() == '06S'",
    "log": "log('x') is None and Log('x', 'debug') is None",
    "configGet": "configGet('none') is None and ConfigGet('none') is None",
    "gearsConfigGet": "gearsConfigGet('none', 7) == 7 and GearsConfigGet('none', 7) == 7",
    "flat_error": "isinstance(flat_error('x'), redgears('GearsError')) and str(redgears('flatError')('x')) == 'x'",
    "isAsyncAllow": "isAsyncAllow() and redgears('isAsyncAllow')()",
    "getGearsSession": "GearsSession(getGearsSession()).__enter__ is not None and setGearsSession is not None",
    "createFuture": "isinstance(createFuture(), Future)",
    "setFutureResults": "setFutureResults(createFuture(), 1) is None",
    "setFutureException": "setFutureException(createFuture(), 'x') is None",
    "runCoroutine": "runCoroutine(asyncio.sleep(0)) is not None",
    "loop": "loop.time() > 0",
    "createKeysOnlyReader": "callable(createKeysOnlyReader('*'))",
    "shardReaderCallback": "next(shardReaderCallback()) == '1'",
    "registerGearsThread": "registerGearsThread() is None",
    "left out": "refused('gearsCtx') and refused('call_next') and refused('get_command')",
    "futures": "issubclass(GearsFuture, object) and callable(gearsFuture) and callable(registerTE)",
    "override_reply": "refused('override_reply', 1) and refused('overrideReply', 1)",
}
HELPERS = """
def redgears(name):
    return getattr(redgears_module(), name)
def redgears_module():
    return redgears_names
redgears_names = redisgears
def refused(name, *arguments):
    try:
        getattr(redisgears, name)(*arguments)
    except redisgears.GearsError:
        return callable(globals().get(name, print))
    return False
"""


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_script_uses_each_name_in_its_body_and_in_a_function(shard: Server, name: str) -> None:
    expression = EXPRESSIONS[name]
    script = f"""{HELPERS}
found = bool({expression})
GB('ShardsIDReader').map(lambda _: [found, bool({expression})]).run()
"""
    results, errors = execute(shard, "RG.PYEXECUTE", script)
    assert (results, errors) == (["[True, True]"], [])


def test_a_stored_function_finds_the_names_after_a_restart(shard: Server) -> None:
    body = "bool(" + " and ".join(f"({expression})" for expression in EXPRESSIONS.values()) + ")"
    script = f"{HELPERS}\nGB('CommandReader').map(lambda _: {body}).register(trigger='globals', mode='async_local')"
    assert execute(shard, "RG.PYEXECUTE", script) == "OK"
    shard.signal_worker(9)
    shard.wait_ready()
    found: Any = execute(shard, "RG.TRIGGER", "globals")
    assert found == ["True"]
