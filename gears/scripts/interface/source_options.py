"""Creates sources from the names of RedisGears' readers and the options of `run` and `register`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ...shard.failures import GearsError
from ..runs.key_values import KEY_TYPES, SCAN_COUNT
from ..runs.sources import (
    CommandSource,
    KeysOnlySource,
    KeysSource,
    PythonSource,
    RecordSource,
    RegisteredSource,
    ShardsIDSource,
    StreamSource,
)

SOURCE_NAMES = ("KeysReader", "KeysOnlyReader", "StreamReader", "PythonReader", "ShardsIDReader", "CommandReader")
_ENTRY_ID = re.compile(r"\d+(-\d+)?|[-$+]")
FAILED_POLICIES = ("continue", "abort", "retry")
MAX_TIMEOUT_MS = 86_400_000
NO_HOOK = (
    "hook= is left out: to answer reads of keys that do not exist use GB('KeysReader').register(prefix=.., "
    "commands=['get'], eventTypes=['keymiss']) and override_reply; else use trigger= and RG.TRIGGER"
)


def checked_function(value: object) -> Callable[..., Any]:
    """Return the value if it is a function; otherwise raise GearsError."""
    if not callable(value):
        raise GearsError("argument must be a function")
    return value


def _whole(options: dict[str, Any], name: str, preset: int, least: int) -> int:
    value = options.get(name, preset)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise GearsError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return value


def _flag(options: dict[str, Any], name: str, preset: bool) -> bool:
    value = options.get(name, preset)
    if not isinstance(value, bool):
        raise GearsError(f"{name} must be True or False, got {value!r}")
    return value


def _entry_id(options: dict[str, Any]) -> str:
    value = options.get("fromId", "0-0")
    if not isinstance(value, str) or not _ENTRY_ID.fullmatch(value):
        raise GearsError(f"fromId must be the id of a stream's entry, such as '0-0', got {value!r}")
    return value


def _names(value: Any, what: str, allowed: frozenset[str] | None = None) -> tuple[str, ...] | None:
    """Return the names in an option of `run` or `register`, in lower case and in the given order.

    The values None and an empty list select all names. For both values, the result is None.

    Args:
        value: the value of the option.
        what: the kind of the names, for error texts, such as "key type".
        allowed: the valid names; None: all names are valid.

    Raises:
        GearsError: the value is not a list of strings, or a name is not in `allowed`.
    """
    if not value:
        return None
    if isinstance(value, str) or not all(isinstance(item, str) for item in value):
        raise GearsError(f"{what} must be a list of strings, got {value!r}")
    names = tuple(item.lower() for item in value)
    unknown = [name for name in names if allowed is not None and name not in allowed]
    if unknown:
        raise GearsError(f"unknown {what}: {unknown[0]!r}, must be one of {', '.join(sorted(allowed or ()))}")
    return names


def run_source(name: str, arg: Any, options: dict[str, Any]) -> RecordSource:
    """Return the source of a run, from the name of the reader and the arguments of `run(arg, **options)`.

    Raises GearsError if an argument is invalid, or if the reader does not support `run`.
    """
    match name:
        case "KeysReader":
            return KeysSource(
                _text(arg, "regex argument must be a string"),
                no_scan=_flag(options, "noScan", False),
                read_value=_flag(options, "readValue", True),
                key_types=_names(options.get("keyTypes"), "key type", KEY_TYPES),
            )
        case "KeysOnlyReader":
            generator = options.get("patternGenerator")
            return KeysOnlySource(
                _text(arg, "regex argument must be a string"),
                count=_whole(options, "count", SCAN_COUNT, 1),
                no_scan=_flag(options, "noScan", False),
                pattern_generator=checked_function(generator) if generator is not None else None,
            )
        case "PythonReader":
            if not callable(arg):
                raise GearsError("pyreader argument must be a function")
            return PythonSource(arg)
        case "ShardsIDReader":
            return ShardsIDSource()
        case "StreamReader":
            stream = _text(arg, "stream argument must be a string")
            return StreamSource(stream, _entry_id(options))
    raise GearsError("Given reader do not support run or not exists")


def registered_source(name: str, arg: Any, options: dict[str, Any]) -> RegisteredSource:
    """Return the source of a registration, from the name of the reader and the arguments of `register(arg, **options)`.

    Raises GearsError if an argument is invalid, or if the reader does not support `register`.
    """
    if name == "CommandReader":
        if options.get("hook") is not None:
            raise GearsError(NO_HOOK)
        trigger = options.get("trigger")
        if not isinstance(trigger, str) or not trigger:
            raise GearsError("no trigger or hook argument was given")
        return CommandSource(trigger, bool(options.get("inorder", False)), _timeout_ms(options.get("timeout")))
    prefix = options.get("prefix", options.get("regex", arg))
    if name == "StreamReader":
        return _registered_stream(_text(prefix, "stream argument must be a string"), options)
    if name != "KeysReader":
        raise GearsError(f"reader does not support register: {name}")
    return KeysSource(
        _text(prefix, "regex argument must be a string"),
        read_value=_flag(options, "readValue", True),
        event_types=_names(options.get("eventTypes"), "event type"),
        key_types=_names(options.get("keyTypes"), "key type", KEY_TYPES),
        commands=_names(options.get("commands"), "command"),
    )


def _timeout_ms(value: object) -> int:
    """Return the option `timeout` of `register` in the form for the module.

    For scripts, None means the module's default, and 0 means no limit. For the module, 0 means its default, and -1
    means no limit. Any other value is a number of milliseconds.
    """
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_TIMEOUT_MS:
        raise GearsError(
            f"timeout must be a whole number of milliseconds from 0 (no limit) to {MAX_TIMEOUT_MS}, got {value!r}"
        )
    return value or -1


def _registered_stream(prefix: str, options: dict[str, Any]) -> StreamSource:
    policy = options.get("onFailedPolicy", "continue")
    if policy not in FAILED_POLICIES:
        raise GearsError(f"unknown onFailedPolicy: {policy!r}, must be one of {', '.join(FAILED_POLICIES)}")
    return StreamSource(
        prefix,
        batch=_whole(options, "batch", 1, 1),
        duration_ms=_whole(options, "duration", 0, 0),
        on_failed=policy,
        retry_seconds=_whole(options, "onFailedRetryInterval", 1, 1),
        trim=_flag(options, "trimStream", True),
    )


def _text(value: Any, problem: str) -> str:
    if not isinstance(value, str):
        raise GearsError(f"{problem}, got {type(value).__name__}")
    return value
