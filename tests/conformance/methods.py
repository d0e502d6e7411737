"""Records the called public methods of the two clients: a full run fails if a method was not called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import redgrease.client
import redgrease.config
import redgrease.gears
import redgrease.reader
import redgrease.runtime
import redisai
import redisai.dag
import redisai.pipeline

CLASSES: tuple[type, ...] = (
    *(redisai.Client, redisai.dag.Dag, redisai.pipeline.Pipeline),
    *(redgrease.client.Gears, redgrease.config.Config, redgrease.runtime.GearsBuilder),
    *(redgrease.gears.OpenGearFunction, redgrease.gears.ClosedGearFunction),
    *(redgrease.reader.KeysReader, redgrease.reader.StreamReader, redgrease.reader.CommandReader),
)


class CalledMethods:
    """Wraps every public method and property of the clients' classes in a recorder."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self._called: set[str] = set()
        for owner in CLASSES:
            for name, value in list(vars(owner).items()):
                if not name.startswith("_") and (callable(value) or isinstance(value, property)):
                    setattr(owner, name, self._recorder(f"{owner.__name__}.{name}", value))

    def _recorder(self, name: str, value: Any) -> Any:
        self.known.add(name)
        if isinstance(value, property):
            assert value.fget is not None
            return property(self._recording(name, value.fget), value.fset)
        return self._recording(name, value)

    def _recording(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def record(*args: Any, **options: Any) -> Any:
            self._called.add(name)
            return method(*args, **options)

        return record

    def left_out(self) -> list[str]:
        """The methods that no test has called."""
        return sorted(self.known - self._called)
