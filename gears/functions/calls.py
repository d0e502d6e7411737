"""The arguments that a job passes to an own function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TriggerCall:
    """One call of a trigger.

    Attributes:
        arguments: the arguments after the trigger's name, each a str, or a bytearray if it is not UTF-8.
        waited_seconds: the time that the call waited in the shard's queue and for the worker's event loop.
    """

    arguments: Sequence[Any]
    waited_seconds: float = 0.0
