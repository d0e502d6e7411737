"""The state of a model in the inference workers: the loading process, the results of loads, and the next retry.

The pool holds its lock during all calls. An invalid file can kill the process that loads it. So until one process has
loaded the model, only one process at a time loads it. This rule applies again when a process has died while it loaded a
model that another process had loaded before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import IO

from ...shard.failures import error_line
from ..backends.base import Port, RuntimeLimits
from .process import InferenceProcess, LoadFailure

MAX_DEATHS = 2
FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0


@dataclass(slots=True, eq=False)
class PooledModel:
    """A model of the pool.

    Attributes:
        served: whether `load` has returned the model. Before that, the client gets the error of a failed load. After
            that, the model is valid, and a process that fails to load it retries later.
        proven: whether a process has loaded it, and since then no process has died while it loaded the model.
        trial_process: the only process that may load it while it is not proven.
        deaths: the number of consecutive processes that died while they loaded it.
        no_load_before: the earliest time of the next load (monotonic seconds) after too many deaths.
        error: the error of a failed load, if `served` was False at that time.
        shapes: the shapes (rows, length) that every process warms.
        senders: the number of threads that are about to send its file.
        forgotten: whether the pool has dropped the model, so that its file must be closed.
    """

    number: int
    backend: str
    device: str
    file: IO[bytes]
    size: int
    limits: RuntimeLimits
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    served: bool = False
    proven: bool = False
    trial_process: InferenceProcess | None = None
    deaths: int = 0
    no_load_before: float = 0.0
    error: Exception | None = None
    shapes: list[tuple[int, int]] = field(default_factory=list)
    senders: int = 0
    forgotten: bool = False

    def due(self, process: InferenceProcess, now: float) -> bool:
        """Return whether an idle process must load the model now. `now` is the time in monotonic seconds."""
        if self.number in process.loaded or self.error is not None or self.given_up or now < self.no_load_before:
            return False
        if self.trial_process is not None:
            return False
        refusal = process.refused.get(self.number)
        return refusal is None or now >= refusal.retry_at

    @property
    def given_up(self) -> bool:
        """Whether too many processes died before any process has loaded the model."""
        return not self.served and self.deaths >= MAX_DEATHS

    def begin(self, process: InferenceProcess) -> None:
        """Record that a process starts to load the model."""
        process.loading = self.number
        self.senders += 1
        if not self.proven:
            self.trial_process = process

    def loaded(self, process: InferenceProcess, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> None:
        """Record that a process has loaded the model."""
        self._over(process)
        self.inputs, self.outputs = inputs, outputs
        self.proven, self.deaths, self.no_load_before = True, 0, 0.0
        process.loaded.add(self.number)
        process.refused.pop(self.number, None)

    def refused(self, process: InferenceProcess, error: Exception, now: float) -> float:
        """Record that a process failed to load the model; return the seconds until its retry (0: no retry)."""
        self._over(process)
        if not self.served:
            self.error = error
            return 0.0
        before = process.refused.get(self.number)
        pause = min(2 * before.pause, MAX_RETRY_SECONDS) if before is not None else FIRST_RETRY_SECONDS
        process.refused[self.number] = LoadFailure(now + pause, pause, error_line(error))
        return pause

    def died(self, process: InferenceProcess, now: float) -> float:
        """Record that a process died while it loaded the model.

        Return the seconds until another process may try to load it (0: at once).
        """
        self._over(process)
        self.proven = False
        self.deaths += 1
        if self.deaths < MAX_DEATHS:
            return 0.0
        pause = min(FIRST_RETRY_SECONDS * 2.0 ** min(self.deaths - MAX_DEATHS, 16), MAX_RETRY_SECONDS)
        self.no_load_before = now + pause
        return pause

    def unavailable_reason(self, processes: list[InferenceProcess], now: float) -> str:
        """Return why no process can run this served model now.

        Return "" if a process can run the model or is about to load it, and also if `processes` is empty.
        """
        if not processes or any(
            self.number in process.loaded or process.loading == self.number for process in processes
        ):
            return ""
        if now < self.no_load_before:
            left = self.no_load_before - now
            return f"{self.deaths} inference workers died while they loaded this model again, next try in {left:.0f} s"
        refusals = [process.refused.get(self.number) for process in processes]
        known = [refusal for refusal in refusals if refusal is not None and now < refusal.retry_at]
        if len(known) < len(processes):
            return ""
        left = min(refusal.retry_at for refusal in known) - now
        return f"no inference worker can load this model again, next try in {left:.0f} s: {known[0].reason}"

    def sent(self) -> None:
        """Record that a thread has sent the file, or has failed to send it. The thread no longer needs the file."""
        self.senders -= 1
        self._close_if_unused()

    def forget(self) -> None:
        """Close the file when no thread sends it any more."""
        self.forgotten = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self.forgotten and self.senders == 0:
            self.file.close()

    def _over(self, process: InferenceProcess) -> None:
        process.loading = None
        if self.trial_process is process:
            self.trial_process = None
