"""The training loop of one stage: batches, loss, steps and learning rate. It can stop after every step.

The batch and the learning rate of a step depend only on the data, the settings and the number of the step. The state of
the random generators is saved. So a resumed run gives the same result as an uninterrupted run.
"""

import math
import time
from collections.abc import Callable, Iterator, Sized
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from qa_cluster.errors import ModelError

from .base import BaseNetwork, Machine
from .encoding import group_batches, group_rows
from .objectives.objective import Objective
from .padding import pad
from .settings import TrainingSettings
from .state import Position

Batch = TypeVar("Batch", bound=Sized)
LOSS_STEPS = 100
"""The record has the mean loss of every 100 steps."""


class StageLoop:
    """Trains the stage with the number `number` (from 0), starting at a position. `steps` is the number of steps of the
    stage. After every step, `run` calls `report(steps done, total steps, loss, rows)`, where `rows` is the number of
    windows of the step.

    With `grouped`, a step has whole groups. `left_out` is the number of windows that are not trained on, because their
    group has more windows than fit into one step.
    """

    def __init__(
        self,
        base: BaseNetwork,
        machine: Machine,
        settings: TrainingSettings,
        number: int,
        objective: Objective,
        *,
        grouped: bool = False,
    ) -> None:
        self._base = base
        self._machine = machine
        self._settings = settings
        self._number = number
        self._objective = objective
        self._windows = windows = objective.windows
        sizes = {"batch_size": settings.batch_size, "batch_tokens": settings.batch_tokens}
        self._groups = group_rows(windows, **sizes) if grouped else list(np.arange(len(windows))[:, None])
        self.left_out = len(windows) - sum(map(len, self._groups))
        self._stage = settings.stages[number]
        whole = math.ceil(self._stage.epochs)
        self._epochs = [self._batches(epoch) for epoch in range(whole)]
        last = max(1, round(len(self._epochs[-1]) * (self._stage.epochs - (whole - 1))))
        self._epochs[-1] = self._epochs[-1][:last]
        self.steps = sum(len(epoch) for epoch in self._epochs)
        self.optimizer = make_optimizer(base.network, settings.weight_decay)

    def run(
        self,
        position: Position,
        *,
        report: Callable[[int, int, float, int], None],
        save: Callable[[], None],
        stopping: Callable[[], bool],
    ) -> bool:
        """Train from `position` to the end of the stage, and return True. If `stopping()` returns True after a step,
        call `save` and return False.
        """
        self._base.network.train()
        return run_steps(
            position,
            self.steps,
            self._from(position.step),
            self._step,
            save_minutes=self._settings.save_minutes,
            report=report,
            save=save,
            stopping=stopping,
        )

    def _batches(self, epoch: int) -> list[NDArray[np.int64]]:
        return group_batches(
            self._groups,
            self._windows.lengths,
            batch_size=self._settings.batch_size,
            batch_tokens=self._settings.batch_tokens,
            seed=[self._settings.seed, self._number, epoch],
        )

    def _from(self, step: int) -> Iterator[NDArray[np.int64]]:
        for epoch in self._epochs:
            yield from epoch[step:]
            step = max(0, step - len(epoch))

    def _step(self, rows: NDArray[np.int64], step: int) -> float:
        import torch

        try:
            value = self._gradients(rows, step)
        except torch.OutOfMemoryError as error:
            raise ModelError(
                f"{self._machine.device} has not enough memory for {len(rows)} windows of up to "
                f"{self._windows.lengths[rows].max()} tokens: train into a different folder with a smaller "
                "--batch-size or --batch-tokens"
            ) from error
        change_weights(
            self._base.network,
            self.optimizer,
            rate=learning_rate(step, self.steps, self._stage.learning_rate, self._settings.warmup),
            max_norm=self._settings.max_gradient_norm,
            check=lambda norm: self._require_finite("length of the gradient", norm, step),
        )
        return value

    def _gradients(self, rows: NDArray[np.int64], step: int) -> float:
        """Compute the gradients of the batch with the windows `rows`, and return its loss. `step` is the number of the
        step, for errors.
        """
        import torch

        device, autocast = self._machine.device, self._machine.autocast
        arrays = pad(self._windows, rows, self._base)
        inputs = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        with torch.autocast(device, dtype=autocast, enabled=autocast is not None):
            output = self._base.network(**inputs)
        loss = self._objective.loss(output, rows)
        value = float(loss.detach())
        self._require_finite("loss", value, step)
        loss.backward()
        return value

    def _require_finite(self, what: str, value: float, step: int) -> None:
        """Raise ModelError if `value` is not finite, because such a value would damage the weights and the saved state.
        `what` names the value in the error.
        """
        if not math.isfinite(value):
            raise ModelError(
                f"the {what} is {value} at step {step + 1} of stage {self._number + 1}: use a lower learning rate than "
                f"{self._stage.learning_rate:g}, or --precision float32"
            )


def run_steps(
    position: Position,
    steps: int,
    batches: Iterator[Batch],
    train_step: Callable[[Batch, int], float],
    *,
    save_minutes: float,
    report: Callable[[int, int, float, int], None],
    save: Callable[[], None],
    stopping: Callable[[], bool],
) -> bool:
    """Train on `batches`, the batches after `position`, and return True. If `stopping()` returns True after a step,
    call `save` and return False. Also call `save` every `save_minutes` minutes. `position` is updated after each step.

    Args:
        train_step: trains on a batch, given the number of the step, and returns the loss.
        report: called after each step with the steps done, all steps, the loss and the size of the batch.
    """
    saved_at = last = time.monotonic()
    for batch in batches:
        loss = train_step(batch, position.step)
        position.step += 1
        position.stretch.append(loss)
        now = time.monotonic()
        position.seconds += now - last
        last = now
        report(position.step, steps, loss, len(batch))
        if position.step % LOSS_STEPS == 0 or position.step == steps:
            mean = sum(position.stretch) / len(position.stretch)
            position.losses.append({"stage": position.stage + 1, "step": position.step, "loss": round(mean, 5)})
            position.stretch = []
        if stopping():
            save()
            return False
        if now - saved_at >= save_minutes * 60:
            save()
            saved_at = last = time.monotonic()
    return True


def change_weights(
    network: Any, optimizer: Any, *, rate: float, max_norm: float, check: Callable[[float], None]
) -> None:
    """Clip the norm of the gradient to `max_norm`, change the weights with the learning rate `rate`, and delete the
    gradients.

    Args:
        check: is called with the norm of the gradient before clipping, and can prevent the change by raising an error.
    """
    import torch

    check(float(torch.nn.utils.clip_grad_norm_(network.parameters(), max_norm)))
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def learning_rate(step: int, steps: int, peak: float, warmup: float) -> float:
    """Return the learning rate of the step with the number `step` (from 0). The rate rises linearly to `peak` over the
    share `warmup` of all steps, and then falls linearly to zero.
    """
    rising = max(1, round(steps * warmup))
    if step < rising:
        return peak * (step + 1) / rising
    return peak * (steps - step) / max(1, steps - rising)


def make_optimizer(network: Any, weight_decay: float) -> Any:
    """Return an AdamW optimizer for the network. Biases and layer norms get no weight decay."""
    import torch

    decayed = [parameter for parameter in network.parameters() if parameter.ndim > 1]
    spared = [parameter for parameter in network.parameters() if parameter.ndim <= 1]
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": spared, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, fused=True)
