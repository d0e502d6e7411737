"""Lets a teacher read examples once, and stores its outputs in a file from which several students can learn.

The work is done in parts of `PART` pairs of question and passage. Finished parts stay on disk when a run is stopped,
and the next call resumes after them.
"""

import fcntl
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

from ...checkpoints.loading import digest_of
from ...checkpoints.record import knows_titles
from ...examples.labelled import Labelled
from ..base import BaseNetwork, Machine, load_base
from ..encoding import WindowEncoder, Windows
from ..padding import logits_of
from ..settings import TrainingSettings
from ..stopping import Interrupted
from .outputs import TOP, TeacherOutputs, compressed, key_of

PART = 2048
"""The number of pairs in a part."""
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True, slots=True)
class Teacher:
    """A trained checkpoint that students learn from: its folder, and whether it was trained on passages with prefixes
    (title and section).
    """

    folder: Path
    titles: bool

    @classmethod
    def at(cls, source: str) -> "Teacher":
        """Return the teacher in the folder `source`. Raises InvalidInput if the folder has no weights."""
        folder = Path(source)
        if not source or not any((folder / name).is_file() for name in _WEIGHTS):
            raise InvalidInput(f"{source!r} has no weights of a teacher: name the folder of a trained checkpoint")
        return cls(folder, knows_titles(folder))

    def identity(self, settings: TrainingSettings) -> dict[str, Any]:
        """Return the values on which the outputs of the teacher depend, in addition to the examples, by name."""
        weights = next(self.folder / name for name in _WEIGHTS if (self.folder / name).is_file())
        limits = {name: getattr(settings, name) for name in ("max_tokens", "doc_stride", "max_question_tokens")}
        return {"teacher": digest_of(weights), "titles": self.titles, **limits}


def teach(
    source: str,
    path: Path,
    examples: Sequence[Labelled],
    settings: TrainingSettings,
    machine: Machine,
    *,
    report: Callable[[int, int], None],
    stopping: Callable[[], bool],
) -> TeacherOutputs:
    """Return the outputs of the teacher in the folder `source`: all outputs in the file `path`, and the outputs for the
    examples that the file lacks. Add the new outputs to the file.

    Raises:
        InvalidInput: the outputs in the file come from a different teacher or other limits in tokens
            (`Teacher.identity`), or another run is writing to the file.
        Interrupted: `stopping()` has returned True. The finished parts stay on disk.
    """
    teacher = Teacher.at(source)
    identity = teacher.identity(settings)
    with _locked(path):
        found = _load_matching(path, identity) if path.exists() else TeacherOutputs.none()
        parts = path.with_name(f"{path.name}.parts")
        finished = [_load_matching(part, identity) for part in sorted(parts.glob("*.npz"))]
        known = TeacherOutputs.joined([found, *finished]).known
        missing = list({key: each for each in examples if (key := key_of(each)) not in known}.values())
        if missing:
            parts.mkdir(parents=True, exist_ok=True)
            base = _load_teacher(source, settings, machine)
            for first in range(0, len(missing), PART):
                if stopping():
                    raise Interrupted(f"stopped after the teacher had read {first} of {len(missing)} pairs")
                part = _read(base, missing[first : first + PART], settings, machine, teacher.titles)
                part.save(parts / f"{len(finished):05}.npz", identity)
                finished.append(part)
                report(min(first + PART, len(missing)), len(missing))
        if finished:
            found = TeacherOutputs.joined([found, *finished])
            found.save(path, identity)
            shutil.rmtree(parts, ignore_errors=True)
        return found


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the file of outputs against other runs while the context is open, with a lock file in the same folder.
    Raises InvalidInput if another run holds the lock.
    """
    lock_file = path.with_name(f"{path.name}.lock")
    try:
        lock = os.open(lock_file, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise ModelError(f"cannot lock the teacher's outputs {str(path)!r}: {error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.fstat(lock).st_nlink:  # the run that held the lock has just deleted the file
            raise BlockingIOError
    except BlockingIOError as error:
        os.close(lock)
        raise InvalidInput(
            f"another run is writing the teacher's outputs {str(path)!r}: wait for it, or choose a different file with"
            " --teacher-outputs"
        ) from error
    try:
        yield
    finally:
        lock_file.unlink(missing_ok=True)
        os.close(lock)


def _load_teacher(source: str, settings: TrainingSettings, machine: Machine) -> BaseNetwork:
    """Return the network of the teacher, for reading. The random generators keep their state, so that loading does not
    change the training of the student.
    """
    import torch

    with torch.random.fork_rng():
        base = load_base(source, replace(settings, attention_dropout=None), machine.device)
    if base.new_head:
        raise InvalidInput(f"teacher {source!r} is an encoder without a span head: train it first")
    base.network.to(machine.device).eval()
    return base


def _load_matching(path: Path, identity: dict[str, Any]) -> TeacherOutputs:
    """Return the outputs in a file. Raises InvalidInput if the outputs belong to a different teacher or different
    limits than `identity`.
    """
    outputs, found = TeacherOutputs.load(path)
    for name, value in identity.items():
        if found.get(name) != value:
            raise InvalidInput(
                f"the teacher's outputs {str(path)!r} belong to another run: {name} was {found.get(name)!r}, is now"
                f" {value!r}; remove the file, or choose a different file with --teacher-outputs"
            )
    return outputs


def _read(
    base: BaseNetwork, examples: Sequence[Labelled], settings: TrainingSettings, machine: Machine, titles: bool
) -> TeacherOutputs:
    windows = WindowEncoder.of(base.tokenizer, settings, title_share=float(titles)).windows(examples)
    rows: list[Any] = [None] * len(windows)
    order = np.argsort(windows.lengths, kind="stable")
    size = max(1, min(settings.batch_size, settings.batch_tokens // int(windows.lengths.max())))
    for first in range(0, len(order), size):
        part = order[first : first + size]
        for row, logits in zip(part, logits_of(base, windows, part, machine), strict=True):
            rows[row] = _window(windows, int(row), logits)
    begins, ends, counts, places, scores, rests = zip(*rows, strict=True)
    return TeacherOutputs(
        keys=np.array([key_of(example) for example in examples], np.uint64),
        windows=np.bincount(windows.owners, minlength=len(examples)).astype(np.int32),
        begins=np.array(begins, np.int32),
        ends=np.array(ends, np.int32),
        counts=np.array(counts, np.int32),
        places=np.array(places, np.int32).reshape(-1, 2, TOP),
        scores=np.array(scores, np.float16).reshape(-1, 2, TOP),
        rests=np.array(rests, np.float16).reshape(-1, 2),
    )


def _window(windows: Windows, row: int, logits: NDArray[np.float32]) -> tuple[Any, ...]:
    """Return the outputs of the window with the number `row`, in the order of the fields `begins` to `rests` of
    `TeacherOutputs`. `logits` has the teacher's logits of first and last tokens, [2, padded length].
    """
    spans = windows.spans[windows.bounds[row] : windows.bounds[row + 1]]
    context = np.flatnonzero(spans[:, 0] >= 0)
    if not np.isfinite(logits[:, context]).all() or not np.isfinite(logits[:, 0]).all():
        raise InvalidInput("the teacher's logits are not finite: use --precision float32")
    sides = [compressed(logits[side, context] - logits[side, 0], spans[context, side]) for side in (0, 1)]
    begin, end = (int(spans[context[0], 0]), int(spans[context[-1], 1])) if len(context) else (0, 0)
    return begin, end, len(context), *([side[part] for side in sides] for part in range(3))
