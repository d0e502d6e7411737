"""The names of the API for scripts, in both spellings of RedisGears 1.2, including unsupported names.

The names are in every script's globals and in the modules `redisgears`, `rg`, `gears` and `redisAI`.
"""

from __future__ import annotations

import asyncio
import copy
import io
import sys
import time
from threading import Thread
from types import ModuleType
from typing import Any

from ...shard.failures import GearsError
from ..host.script_host import current_host
from ..runs.futures import (
    GearsFuture,
    GearsSession,
    create_future,
    get_gears_session,
    run_coroutine,
    set_future_exception,
    set_future_results,
    set_gears_session,
)
from . import api, redis_ai
from .builder import GearsBuilder
from .source_options import NO_HOOK


def call_next(*_: object) -> None:
    """Raise an error: command hooks are not supported."""
    raise GearsError(f"call_next is left out: {NO_HOOK}")


def get_command() -> None:
    """Raise an error: command hooks are not supported."""
    raise GearsError(f"Can not get CommandHook ctx: {NO_HOOK}")


def gears_ctx(*_: object) -> None:
    """Raise an error: only `GearsBuilder` makes pipelines."""
    raise GearsError("gearsCtx is left out: use GearsBuilder")


def register_gears_thread() -> None:
    """Do nothing. A function's thread has the function's execution and rights without registration."""


class _Loop:
    """The global `loop` of scripts: it stands for the event loop on which the coroutines of scripts run.

    Unlike a real loop, this object can be pickled with a function's globals.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(current_host().coroutines.loop, name)

    def __reduce__(self) -> tuple[type[_Loop], tuple[()]]:
        return _Loop, ()


_NAMES: dict[str, Any] = {
    **dict.fromkeys(("GearsBuilder", "GB"), GearsBuilder),
    **dict.fromkeys(("execute", "executeCommand"), api.execute),
    **dict.fromkeys(("execute_many", "executeMany"), api.execute_many),
    **dict.fromkeys(("execute_later", "executeLater"), api.execute_later),
    **dict.fromkeys(("override_reply", "overrideReply"), api.override_reply),
    **dict.fromkeys(("atomic", "atomicCtx"), api.atomic),
    **dict.fromkeys(("isInAtomicBlock", "is_in_atomic_block"), api.is_in_atomic_block),
    **dict.fromkeys(("isAsyncAllow", "is_async_allow"), api.is_async_allow),
    **dict.fromkeys(("hashtag", "getMyHashTag"), api.hashtag),
    **dict.fromkeys(("log", "Log"), api.log),
    **dict.fromkeys(("configGet", "config_get", "ConfigGet"), api.config_get),
    **dict.fromkeys(("gearsConfigGet", "gears_config_get", "GearsConfigGet"), api.gears_config_get),
    **dict.fromkeys(("flat_error", "flatError"), api.flat_error),
    **dict.fromkeys(("gearsFuture", "gears_future", "gearsFutureCtx"), api.gears_future),
    **dict.fromkeys(("GearsFuture",), GearsFuture),
    **dict.fromkeys(("createFuture",), create_future),
    **dict.fromkeys(("setFutureResults",), set_future_results),
    **dict.fromkeys(("setFutureException",), set_future_exception),
    **dict.fromkeys(("runCoroutine",), run_coroutine),
    **dict.fromkeys(("GearsSession",), GearsSession),
    **dict.fromkeys(("getGearsSession",), get_gears_session),
    **dict.fromkeys(("setGearsSession",), set_gears_session),
    **dict.fromkeys(("registerTE", "registerTimeEvent"), api.register_time_event),
    **dict.fromkeys(("call_next", "callNext"), call_next),
    **dict.fromkeys(("get_command", "getCommand"), get_command),
    **dict.fromkeys(("gearsCtx",), gears_ctx),
    **dict.fromkeys(("registerGearsThread",), register_gears_thread),
    **dict.fromkeys(("createKeysOnlyReader",), api.create_keys_only_reader),
    **dict.fromkeys(("shardReaderCallback",), api.shard_reader_callback),
    **dict.fromkeys(("loop",), _Loop()),
    **dict.fromkeys(("error", "GearsError"), GearsError),
}


# The names that scripts of RedisGears have without an import, because RedisGears' own Python code imports them.
_IMPORTED: dict[str, Any] = {
    "asyncio": asyncio,
    "copy": copy,
    "io": io,
    "time": time,
    "Thread": Thread,
    "Future": asyncio.Future,
    "redisAI": redis_ai,
}


def script_globals() -> dict[str, Any]:
    """Return the globals of every script: the objects of the API by name."""
    if "redisgears" not in sys.modules:
        install_modules()
    names = {name: value for name, value in _NAMES.items() if name != "error"}
    modules = {name: sys.modules[name] for name in ("redisgears", "rg")}
    return {**_IMPORTED, **names, **modules}


def install_modules() -> None:
    """Make `redisgears`, `rg`, `gears` and `redisAI` importable in this process.

    Also put the names that redgrease, a client library for RedisGears, needs into the module `__main__`.
    """
    for module_name in ("redisgears", "rg", "gears"):
        module = ModuleType(module_name, api.__doc__)
        module.__dict__.update(_NAMES)
        sys.modules[module_name] = module
    sys.modules["redisAI"] = redis_ai
    # redgrease reads the builder and the settings from __main__
    vars(sys.modules["__main__"]).update(
        {name: _NAMES[name] for name in ("GB", "GearsBuilder", "configGet", "gearsConfigGet")}
    )
