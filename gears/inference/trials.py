"""Counts the failures of models and scripts in the module, so that a new worker also has the counts."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

from ..shard.host import Host


@dataclass(frozen=True, slots=True)
class Trial:
    """The record of a model or script.

    Attributes:
        key: the name of its key; empty if it has no key.
        failures: the number of its consecutive failures.
        reason: the reason of the last failure; empty without a failure.
        passed: whether it has ever been loaded and run within its limits.
    """

    key: str
    failures: int = 0
    reason: str = ""
    passed: bool = False


class ModuleTrials:
    """The records (`Trial`) of models and scripts, by reference.

    Models without a key have negative references. Their records are only in the memory of this worker.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._without_key: dict[int, Trial] = {}

    def of(self, ref: int) -> Trial:
        """Return the record of the model or script with this reference. A new record has no failures."""
        return self._without_key.get(ref, Trial("")) if ref < 0 else self._asked(ref)

    def failed(self, ref: int, reason: str) -> Trial:
        """Add 1 to the failures of a model; return the new record."""
        if ref >= 0:
            return self._asked(ref, "FAILED", reason)
        with self._lock:
            trial = replace(self.of(ref), failures=self.of(ref).failures + 1, reason=reason)
            self._without_key[ref] = trial
        return trial

    def passed(self, ref: int) -> None:
        """Record that the model was loaded and run within its limits. For a model without a key, do nothing."""
        if ref >= 0:
            self._asked(ref, "PASSED")

    def succeeded(self, ref: int) -> None:
        """Set the number of failures to 0, because a run has succeeded."""
        if ref >= 0:
            self._asked(ref, "SUCCEEDED")
        else:
            self._without_key.pop(ref, None)

    def _asked(self, ref: int, *words: str) -> Trial:
        reply: list[Any] = self._host.links.link().execute("QA.TRIAL", ref, *words)
        key, failures, reason, passed = reply
        return Trial(key.decode("utf-8", "replace"), failures, reason.decode("utf-8", "replace"), bool(passed))
