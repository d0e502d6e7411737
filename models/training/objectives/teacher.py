"""Has a teacher read examples, once, and keeps its outputs in a file that any number of students learn from.

The work is done in parts; what is finished stays on disk when it is stopped, and the same call goes on.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qa_cluster.errors import InvalidInput, ModelError

from ...checkpoints.record import knows_titles
from ...examples.labelled import Labelled
from ..base import Base, Machine, load_base
from ..encoding import WindowEncoder, Windows
from ..padding import pad
from ..settings import TrainingSettings
from .outputs import TOP, Outputs, compressed, key_of

PART = 2048
"""So many pairs are read before their outputs are written."""
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


class Stopped(Exception):
    """The reading was stopped; what is finished is kept."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """A checkpoint to learn from: its folder, and whether it was trained on passages with their prefixes."""

    folder: Path
    titles: bool

    @classmethod
    def at(cls, source: str) -> "Teacher":
        """The teacher in a folder; InvalidInput if there is none. `training.json` says whether it knows titles."""
        folder = Path(source)
        if not source or not any((folder / name).is_file() for name in _WEIGHTS):
            raise InvalidInput(f"no teacher {source!r}: name the folder of a trained checkpoint")
        return cls(folder, knows_titles(folder))

    def identity(self, settings: TrainingSettings) -> dict[str, Any]:
        """What the outputs depend on, besides the examples."""
        weights = next(self.folder / name for name in _WEIGHTS if (self.folder / name).is_file())
        with weights.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        limits = {name: getattr(settings, name) for name in ("max_tokens", "doc_stride", "max_question_tokens")}
        return {"teacher": digest, "titles": self.titles, **limits}


def teach(
    source: str,
    path: Path,
    examples: Sequence[Labelled],
    settings: TrainingSettings,
    machine: Machine,
    *,
    report: Callable[[int, int], None],
    stopping: Callable[[], bool],
) -> Outputs:
    """Return the outputs for all examples, from the file at `path` where it has them; add the others to it.

    InvalidInput if the file is of another teacher or of other limits, or if another run adds to it just now; Stopped
    after `stopping()` has returned True.
    """
    teacher = Teacher.at(source)
    identity = teacher.identity(settings)
    with _alone(path):
        found = _same(path, identity) if path.exists() else Outputs.none()
        parts = path.with_name(f"{path.name}.parts")
        finished = [_same(part, identity) for part in sorted(parts.glob("*.npz"))]
        known = Outputs.joined([found, *finished]).known
        missing = list({key: each for each in examples if (key := key_of(each)) not in known}.values())
        if missing:
            parts.mkdir(parents=True, exist_ok=True)
            base = _loaded(source, settings, machine)
            for first in range(0, len(missing), PART):
                if stopping():
                    raise Stopped(f"stopped after the teacher had read {first} of {len(missing)} pairs")
                part = _read(base, missing[first : first + PART], settings, machine, teacher.titles)
                part.save(parts / f"{len(finished):05}.npz", identity)
                finished.append(part)
                report(min(first + PART, len(missing)), len(missing))
        if finished:
            found = Outputs.joined([found, *finished])
            found.save(path, identity)
            shutil.rmtree(parts, ignore_errors=True)
        return found


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other runs from the file of outputs at `path`, by a lock beside it."""
    beside = path.with_name(f"{path.name}.lock")
    try:
        lock = os.open(beside, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise ModelError(f"cannot lock the teacher's outputs {str(path)!r}: {error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.fstat(lock).st_nlink:  # the run that held it has just taken it away
            raise BlockingIOError
    except BlockingIOError as error:
        os.close(lock)
        raise InvalidInput(
            f"another run adds to the teacher's outputs {str(path)!r}: wait for it, or name another file with"
            " --teacher-outputs"
        ) from error
    try:
        yield
    finally:
        beside.unlink(missing_ok=True)
        os.close(lock)


def _loaded(source: str, settings: TrainingSettings, machine: Machine) -> Base:
    """The teacher, loaded without a trace in the random generators: what follows must not depend on this."""
    import torch

    with torch.random.fork_rng():
        base = load_base(source, replace(settings, attention_dropout=None), machine.device)
    if base.new_head:
        raise InvalidInput(f"teacher {source!r} is an encoder without a span head: it knows no answers, train it first")
    base.network.to(machine.device).eval()
    return base


def _same(path: Path, identity: dict[str, Any]) -> Outputs:
    """The outputs in a file, if they are of the same teacher with the same limits."""
    outputs, found = Outputs.load(path)
    for name, value in identity.items():
        if found.get(name) != value:
            raise InvalidInput(
                f"the teacher's outputs {str(path)!r} are of another run: {name} was {found.get(name)!r}, is now "
                f"{value!r}; remove the file, or name another one with --teacher-outputs"
            )
    return outputs


def _read(
    base: Base, examples: Sequence[Labelled], settings: TrainingSettings, machine: Machine, titles: bool
) -> Outputs:
    encoder = WindowEncoder(
        base.tokenizer,
        max_tokens=settings.max_tokens,
        doc_stride=settings.doc_stride,
        max_question_tokens=settings.max_question_tokens,
        title_share=float(titles),
    )
    windows = encoder.windows(examples)
    rows: list[Any] = [None] * len(windows)
    order = np.argsort(windows.lengths, kind="stable")
    size = max(1, min(settings.batch_size, settings.batch_tokens // int(windows.lengths.max())))
    for first in range(0, len(order), size):
        part = order[first : first + size]
        for row, logits in zip(part, _logits(base, windows, part, machine), strict=True):
            rows[row] = _window(windows, int(row), logits)
    begins, ends, counts, places, scores, rests = zip(*rows, strict=True)
    return Outputs(
        keys=np.array([key_of(example) for example in examples], np.uint64),
        windows=np.bincount(windows.owners, minlength=len(examples)).astype(np.int32),
        begins=np.array(begins, np.int32),
        ends=np.array(ends, np.int32),
        counts=np.array(counts, np.int32),
        places=np.array(places, np.int32).reshape(-1, 2, TOP),
        scores=np.array(scores, np.float16).reshape(-1, 2, TOP),
        rests=np.array(rests, np.float16).reshape(-1, 2),
    )


def _logits(base: Base, windows: Windows, rows: NDArray[np.int64], machine: Machine) -> NDArray[np.float32]:
    """The logits of first and last tokens, float32 [rows, 2, padded length]."""
    import torch

    arrays, _, _ = pad(windows, rows, base)
    inputs = {name: torch.from_numpy(array).to(machine.device) for name, array in arrays.items()}
    with (
        torch.inference_mode(),
        torch.autocast(machine.device, dtype=machine.autocast, enabled=machine.autocast is not None),
    ):
        output = base.network(**inputs)
    found: NDArray[np.float32] = torch.stack([output.start_logits, output.end_logits], 1).float().cpu().numpy()
    return found


def _window(windows: Windows, row: int, logits: NDArray[np.float32]) -> tuple[Any, ...]:
    """What is kept of a window: its code points, its number of positions, and the best places of both sides."""
    spans = windows.spans[windows.bounds[row] : windows.bounds[row + 1]]
    context = np.flatnonzero(spans[:, 0] >= 0)
    if not np.isfinite(logits[:, context]).all() or not np.isfinite(logits[:, 0]).all():
        raise InvalidInput("the teacher's logits are not numbers: use --precision float32")
    sides = [compressed(logits[side, context] - logits[side, 0], spans[context, side]) for side in (0, 1)]
    begin, end = (int(spans[context[0], 0]), int(spans[context[-1], 1])) if len(context) else (0, 0)
    return begin, end, len(context), *([side[part] for side in sides] for part in range(3))
