"""The state of a run on disk: written atomically, and refused if it belongs to a different run."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qa_cluster.errors import InvalidInput, ModelError

STATE_FILE = "resume.pt"
_FORMAT = 1


@dataclass(slots=True)
class Position:
    """The position of a run: the number of the stage (from 0), the steps done in this stage, the seconds of training,
    and data for the training record.

    `losses` has a mean loss for every 100 steps, and for the remaining steps at the end of a stage.
    `stretch` has the losses of the steps after the last of these means.
    `data` describes the stages that have started.
    """

    stage: int = 0
    step: int = 0
    seconds: float = 0.0
    losses: list[dict[str, float]] = field(default_factory=list)
    stretch: list[float] = field(default_factory=list)
    data: list[dict[str, Any]] = field(default_factory=list)


def save_state(folder: Path, identity: dict[str, Any], position: Position, network: Any, optimizer: Any) -> None:
    """Write everything that a resumed run needs to `folder`, atomically. `identity` describes the data and the settings
    of the run. `optimizer` is None at the end of a stage.

    If the write fails, for example on a full disk, it raises ModelError and keeps the previous state.
    """
    import torch

    state = {
        "format": _FORMAT,
        "identity": identity,
        "position": {name: getattr(position, name) for name in Position.__slots__},
        "network": network.state_dict(),
        "optimizer": None if optimizer is None else optimizer.state_dict(),
        "random": torch.get_rng_state(),
        "random_cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }
    partial = folder / f"{STATE_FILE}.partial"
    try:
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(folder / STATE_FILE)
    except (OSError, RuntimeError) as error:  # torch turns an OSError into a RuntimeError without its cause
        partial.unlink(missing_ok=True)
        kept = "; the previous state is kept" if (folder / STATE_FILE).exists() else ""
        free = shutil.disk_usage(folder).free / 1e6
        raise ModelError(
            f"cannot save the run in {str(folder)!r}, where {free:.0f} MB are free{kept}: "
            f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        ) from error


def load_state(folder: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """Return the saved state in `folder`. Raises InvalidInput, which names the first difference, if the state belongs
    to other data or settings than `identity`. Raises ModelError if the state cannot be read.
    """
    import torch

    path = folder / STATE_FILE
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        known = state["identity"] if state["format"] == _FORMAT else {}
    except Exception as error:  # unpickling and unzipping raise errors of many types
        raise ModelError(f"cannot read {str(path)!r}: {type(error).__name__}: {error}") from error
    for name, value in identity.items():
        if known.get(name) != value:
            raise InvalidInput(
                f"cannot resume {str(path)!r}: {name} was {known.get(name)!r}, is now {value!r}; "
                "repeat the command with its original options, or train into a different folder"
            )
    return state


def restore(state: dict[str, Any], network: Any) -> Position:
    """Restore the weights of the network and the random generators from a saved state. Return the position
    of the run.
    """
    import torch

    network.load_state_dict(state["network"])
    torch.set_rng_state(state["random"])
    if state["random_cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["random_cuda"][: torch.cuda.device_count()])  # the run uses the first GPU
    return Position(**state["position"])
