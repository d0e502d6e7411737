"""A model that all inference workers load: which of them loads it now, what came of it, and when it is tried again.

The pool holds its lock around everything here. A process that loads a bad file may die of it. So until one process has
loaded the model, and again after one has died of it, only one at a time tries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import IO

from ...shard.failures import error_line
from ..backends.base import Port, RuntimeLimits
from .process import InferenceProcess, Refusal

MAX_DEATHS = 2
FIRST_REST_SECONDS = 1.0
MAX_REST_SECONDS = 60.0


@dataclass(slots=True, eq=False)
class PooledModel:
    """A model of the pool.

    Attributes:
        served: whether `load` has returned it. Before that a refusal is the answer to the client; afterwards the
            model is known to be good, and a process that does not take it tries again later.
        proven: whether a process has loaded it, and none has died of that since.
        trying: the process that loads it alone, because it is not proven.
        deaths: how many processes in a row have died while they loaded it.
        rests_until: no process loads it before this time (monotonic seconds), because too many have died of it.
        error: why it was refused before it was served.
        shapes: rows and length of the runs that every process makes before it is asked for them.
        senders: threads that are about to send its file.
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
    trying: InferenceProcess | None = None
    deaths: int = 0
    rests_until: float = 0.0
    error: Exception | None = None
    shapes: list[tuple[int, int]] = field(default_factory=list)
    senders: int = 0
    forgotten: bool = False

    def due(self, life: InferenceProcess, now: float) -> bool:
        """Whether a process, which loads nothing else, is to load it now."""
        if self.number in life.loaded or self.error is not None or self.given_up or now < self.rests_until:
            return False
        if self.trying is not None:
            return False
        refusal = life.refused.get(self.number)
        return refusal is None or now >= refusal.again_at

    @property
    def given_up(self) -> bool:
        """Whether processes have died of it before it was ever loaded."""
        return not self.served and self.deaths >= MAX_DEATHS

    def begin(self, life: InferenceProcess) -> None:
        """Note that a process begins to load it."""
        life.loading = self.number
        self.senders += 1
        if not self.proven:
            self.trying = life

    def loaded(self, life: InferenceProcess, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> None:
        """Note that a process has loaded it."""
        self._over(life)
        self.inputs, self.outputs = inputs, outputs
        self.proven, self.deaths, self.rests_until = True, 0, 0.0
        life.loaded.add(self.number)
        life.refused.pop(self.number, None)

    def refused(self, life: InferenceProcess, error: Exception, now: float) -> float:
        """Note that a process did not take it; return after how many seconds that process tries again, 0 for never."""
        self._over(life)
        if not self.served:
            self.error = error
            return 0.0
        before = life.refused.get(self.number)
        pause = min(2 * before.pause, MAX_REST_SECONDS) if before is not None else FIRST_REST_SECONDS
        life.refused[self.number] = Refusal(now + pause, pause, error_line(error))
        return pause

    def died(self, life: InferenceProcess, now: float) -> float:
        """Note that a process died while it loaded it; return for how many seconds no other one tries."""
        self._over(life)
        self.proven = False
        self.deaths += 1
        if self.deaths < MAX_DEATHS:
            return 0.0
        pause = min(FIRST_REST_SECONDS * 2.0 ** min(self.deaths - MAX_DEATHS, 16), MAX_REST_SECONDS)
        self.rests_until = now + pause
        return pause

    def lacking(self, lives: list[InferenceProcess], now: float) -> str:
        """Why none of these processes can run it now, though it is served; empty if one can or is about to."""
        if not lives or any(self.number in life.loaded or life.loading == self.number for life in lives):
            return ""
        if now < self.rests_until:
            left = self.rests_until - now
            return f"{self.deaths} inference workers died while they loaded this model again, it rests for {left:.0f} s"
        refusals = [life.refused.get(self.number) for life in lives]
        known = [refusal for refusal in refusals if refusal is not None and now < refusal.again_at]
        if len(known) < len(lives):
            return ""
        left = min(refusal.again_at for refusal in known) - now
        return f"no inference worker takes this model again, the next try is in {left:.0f} s: {known[0].reason}"

    def sent(self) -> None:
        """Note that a thread no longer needs the file."""
        self.senders -= 1
        self._close_if_unused()

    def forget(self) -> None:
        """Close the file as soon as nobody sends it any more."""
        self.forgotten = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self.forgotten and self.senders == 0:
            self.file.close()

    def _over(self, life: InferenceProcess) -> None:
        life.loading = None
        if self.trying is life:
            self.trying = None
