"""The outputs of a teacher on disk: its distributions over the text, for each pair of question and passage.

Positions are stored as code points of the context, not as tokens. So students with any tokenizer can learn from one
file. For each window, the file has the scores over null of the `TOP` best positions. The other positions share the rest
of the probability evenly. The null has the score 0.
"""

import json
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qa_cluster.errors import InvalidInput, ModelError

from ...examples.labelled import Labelled

TOP = 16
_FORMAT = 1
_LARGEST = 1e4  # float16 reaches 65,504
_ARRAYS = ("keys", "windows", "begins", "ends", "counts", "places", "scores", "rests")


@dataclass(frozen=True, slots=True)
class TeacherOutputs:
    """The outputs for `E` pairs, which have `W` windows.

    Attributes:
        keys: uint64 [E], the `key_of` each pair.
        windows: int32 [E], the number of windows of each pair.
        begins, ends: int32 [W], the range of the context in the window: its first code point, and the code point after
            its last one.
        counts: int32 [W], the number of positions in the window: the tokens of the context.
        places: int32 [W, 2, TOP], the starts of the best first tokens, and the ends of the best last tokens.
        scores: float16 [W, 2, TOP], the scores over null of the positions in `places`, best first; -inf if a window has
            fewer positions.
        rests: float16 [W, 2], the common score of all other positions: the logarithm of the mean of the exponentials of
            their scores; -inf if there are no other positions.
    """

    keys: NDArray[np.uint64]
    windows: NDArray[np.int32]
    begins: NDArray[np.int32]
    ends: NDArray[np.int32]
    counts: NDArray[np.int32]
    places: NDArray[np.int32]
    scores: NDArray[np.float16]
    rests: NDArray[np.float16]

    @property
    def known(self) -> frozenset[int]:
        """The keys of all pairs."""
        return frozenset(self.keys.tolist())

    @classmethod
    def none(cls) -> "TeacherOutputs":
        """Return outputs without any pair."""
        shapes: dict[str, tuple[Any, tuple[int, ...]]] = dict.fromkeys(_ARRAYS, (np.int32, (0,)))
        shapes |= {"keys": (np.uint64, (0,)), "places": (np.int32, (0, 2, TOP))}
        shapes |= {"scores": (np.float16, (0, 2, TOP)), "rests": (np.float16, (0, 2))}
        return cls(**{name: np.zeros(shape, kind) for name, (kind, shape) in shapes.items()})

    @classmethod
    def joined(cls, parts: Sequence["TeacherOutputs"]) -> "TeacherOutputs":
        """Return outputs with the pairs of all parts, in the order of `parts`."""
        parts = [cls.none(), *parts]
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS})

    def save(self, path: Path, identity: dict[str, Any]) -> None:
        """Write the outputs to a compressed file, atomically. `identity` describes the teacher and its limits in tokens
        (`Teacher.identity`); the file records `identity`. Raises ModelError if the file cannot be written.
        """
        header = np.frombuffer(json.dumps({"format": _FORMAT, **identity}, sort_keys=True).encode(), np.uint8)
        partial = path.with_name(f"{path.name}.partial")
        try:
            with partial.open("wb") as file:
                np.savez_compressed(file, header=header, **{name: getattr(self, name) for name in _ARRAYS})
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise ModelError(f"cannot write the teacher's outputs to {str(path)!r}: {error}") from error

    @classmethod
    def load(cls, path: Path) -> tuple["TeacherOutputs", dict[str, Any]]:
        """Read a file that `save` has written. Return the outputs, and the `identity` in the file.

        Raises InvalidInput if the file cannot be read, is damaged, or has a different format.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                identity: dict[str, Any] = json.loads(file["header"].tobytes())
                found = cls(**{name: file[name] for name in _ARRAYS})
            if identity.pop("format") != _FORMAT or int(found.windows.sum()) != len(found.begins):
                raise InvalidInput(
                    f"teacher's outputs {str(path)!r} have a different format: remove the file, and compute them again"
                )
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise InvalidInput(f"cannot read the teacher's outputs {str(path)!r}: {error}") from error
        return found, identity


def key_of(example: Labelled) -> int:
    """Return a 64-bit hash of a question and a context with its title and section."""
    text = "\0".join((example.question, example.context, example.title, example.section))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def compressed(logits: NDArray[np.float32], places: NDArray[np.int32]) -> tuple[Any, Any, Any]:
    """Return the `TOP` best places of a window, the scores of these places, and the common score of all other positions
    (see `TeacherOutputs`).

    Args:
        logits: float32 [positions], the logit of each position minus the logit of the null.
        places: int32 [positions], the code point of each position.
    """
    scores = np.clip(logits, -_LARGEST, _LARGEST)
    order = np.argsort(-scores, kind="stable")
    best, others = order[:TOP], order[TOP:]
    found = np.full(TOP, -np.inf, np.float16)
    found[: len(best)] = scores[best]
    where = np.zeros(TOP, np.int32)
    where[: len(best)] = places[best]
    rest = -np.inf
    if len(others):
        top = float(scores[others].max())
        rest = top + float(np.log(np.mean(np.exp(scores[others].astype(np.float64) - top))))
    return where, found, np.float16(rest)
