"""Sends script calls and pipelines for the functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qa_cluster.errors import ClusterError
from qa_cluster.gears.scripting import api as rg
from qa_cluster.scripts.calls import ScriptCall


def run_script(call: ScriptCall) -> Any:
    """Run a Lua script on this shard."""
    (reply,) = run_scripts([call])
    if isinstance(reply, rg.error):
        raise reply
    return reply


def run_scripts(calls: Sequence[ScriptCall]) -> list[Any]:
    """Run Lua scripts on this shard in one round trip; an `rg.error` stands in the place of a reply.

    They are not atomic together: other clients' commands may run between them.
    """
    replies = rg.execute_many([call.short() for call in calls], keep_errors=True)
    unknown = [number for number, reply in enumerate(replies) if is_unknown(reply)]
    if unknown:
        again = rg.execute_many([calls[number].command() for number in unknown], keep_errors=True)
        for number, reply in zip(unknown, again, strict=True):
            replies[number] = reply
    return replies


def is_unknown(reply: Any) -> bool:
    """Whether the server did not have the script."""
    return isinstance(reply, rg.error) and str(reply).startswith("NOSCRIPT")


def is_wrong_type(reply: Any) -> bool:
    """Whether a key has a value of another type than the command takes: so it stays until somebody changes it."""
    return isinstance(reply, rg.error) and "WRONGTYPE" in str(reply)


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
