"""RedisGears' settings (`RG.CONFIGSET`) that the worker uses. The worker reads the settings from the module, and again
when they are older than `MAX_AGE_SECONDS`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...shard.replies import decode_reply
from ..host.script_errors import ErrorStyle
from .history import MAX_EXECUTIONS, MAX_EXECUTIONS_PER_REGISTRATION, ExecutionHistory

MAX_AGE_SECONDS = 1.0
_DEFAULTS = {
    "MaxExecutions": MAX_EXECUTIONS,
    "MaxExecutionsPerRegistration": MAX_EXECUTIONS_PER_REGISTRATION,
    "PythonAttemptTraceback": 1,
    "ExecutionMaxIdleTime": 5000,
}


class GearsSettings:
    """The last values of the settings that were read from the module.

    `read` runs a command on the shard and returns the reply. The limits of executions also go to `history`.
    """

    def __init__(self, read: Callable[..., Any], history: ExecutionHistory) -> None:
        self._read = read
        self._history = history
        self._read_at = float("-inf")
        self._values = dict(_DEFAULTS)

    def keep_fresh(self) -> None:
        """Read the settings if the last read is older than `MAX_AGE_SECONDS`."""
        if time.monotonic() - self._read_at > MAX_AGE_SECONDS:
            self.refresh()

    def refresh(self) -> None:
        """Read the settings. Use the default for a value that is not a whole number."""
        reply = self._read("RG.CONFIGGET", *_DEFAULTS)
        for (name, default), value in zip(_DEFAULTS.items(), reply, strict=True):
            text = str(decode_reply(value))
            self._values[name] = int(text) if text.isdecimal() else default
        self._read_at = time.monotonic()
        self._history.max_executions = self._values["MaxExecutions"]
        self._history.max_per_registration = self._values["MaxExecutionsPerRegistration"]
        ErrorStyle.tracebacks = self._values["PythonAttemptTraceback"] != 0

    @property
    def max_idle_seconds(self) -> float:
        """`ExecutionMaxIdleTime`, converted from milliseconds to seconds. The result is at least 0.001."""
        return max(self._values["ExecutionMaxIdleTime"], 1) / 1000
