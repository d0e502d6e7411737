"""Sends script calls and pipelines for the functions."""

from __future__ import annotations

from typing import Any

from qa_cluster.errors import ClusterError
from qa_cluster.gears.scripting import api as rg
from qa_cluster.scripts import ScriptCall


def run_script(call: ScriptCall) -> Any:
    """Run a Lua script on this shard."""
    return rg.execute("EVAL", call.source, len(call.keys), *call.keys, *call.args)


def run_script_later(call: ScriptCall) -> None:
    """Run a Lua script on this shard without waiting for its reply; it runs before the job's client gets its answer."""
    rg.execute_later("EVAL", call.source, len(call.keys), *call.keys, *call.args)


async def run_pipeline(builder: rg.GearsBuilder, arg: str | None = None, **options: Any) -> tuple[list[Any], list[str]]:
    """Run a pipeline over all shards; return its results and errors."""
    future = builder.run(arg, convertToStr=False, **options)
    if future is None:
        raise ClusterError("a pipeline cannot be waited for while a script is still being read")
    results, errors = await future
    return results, errors
