"""Scripts find the names of RedisGears without importing them, and so do their functions on every shard."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.servers import Server, execute

# Each expression is true wherever it runs; a script has imported nothing.
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
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_script_uses_it_in_its_body_and_in_a_function(shard: Server, name: str) -> None:
    expression = EXPRESSIONS[name]
    script = f"""
found = {expression}
GB('ShardsIDReader').map(lambda _: [found, {expression}]).run()
"""
    results, errors = execute(shard, "RG.PYEXECUTE", script)
    assert (results, errors) == (["[True, True]"], [])


def test_a_function_that_was_stored_finds_them_after_a_restart(shard: Server) -> None:
    body = " and ".join(f"({expression})" for expression in EXPRESSIONS.values())
    script = f"GB('CommandReader').map(lambda _: {body}).register(trigger='globals', mode='async_local')"
    assert execute(shard, "RG.PYEXECUTE", script) == "OK"
    shard.signal_worker(9)
    shard.wait_ready()
    found: Any = execute(shard, "RG.TRIGGER", "globals")
    assert found == ["True"]
