"""Maps the outputs of a teacher to the windows of a student: from code points to positions of the student's tokens.

Teacher and student can have different tokens and windows. A first token is matched by its start, and a last token by
its end. A position without a match is assigned to the nearest token. A window of the student gets the distribution of
the teacher's window that shares most text with it. Positions outside the student's window are assigned to the null,
like labels outside a window.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qa_cluster.errors import InvalidInput

from ...examples.labelled import Labelled
from ..encoding import Windows
from .outputs import TeacherOutputs, key_of


def require_outputs(outputs: TeacherOutputs, examples: Sequence[Labelled]) -> None:
    """Raise InvalidInput if the outputs of a teacher lack one of the examples."""
    known = outputs.known
    lacking = sum(key_of(example) not in known for example in examples)
    if lacking:
        raise InvalidInput(
            f"the teacher's outputs lack {lacking} of {len(examples)} examples: name the teacher with --teacher to add "
            "them"
        )


class TeacherTargets:
    """The teacher's distributions for the windows of a stage.

    Args:
        examples: the examples of the windows; `outputs` must cover all of them.
        temperature: 1 leaves the distributions unchanged; a higher temperature softens them.
    """

    def __init__(
        self, outputs: TeacherOutputs, windows: Windows, examples: Sequence[Labelled], *, temperature: float
    ) -> None:
        self._outputs = outputs
        self._windows = windows
        self._temperature = temperature
        places = {key: number for number, key in enumerate(outputs.keys.tolist())}
        found = [places[key_of(example)] for example in examples]
        first = np.concatenate(([0], np.cumsum(outputs.windows)))
        self._bounds = [(int(first[number]), int(first[number + 1])) for number in found]

    def rows(self, rows: NDArray[np.int64], length: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the teacher's distributions of the first and of the last position of the answer, for the windows with
        the numbers `rows`, float32 [rows, length] each. `length` is the padded length of the windows.

        The sum of each row is 1.
        """
        found = np.zeros((2, len(rows), length), np.float32)
        for number, row in enumerate(rows):
            spans = self._windows.spans[self._windows.bounds[row] : self._windows.bounds[row + 1]]
            context = np.flatnonzero(spans[:, 0] >= 0)
            window = self._nearest(int(self._windows.owners[row]), spans[context]) if len(context) else -1
            for side in (0, 1):
                if window < 0:
                    found[side, number, 0] = 1
                else:
                    found[side, number] = self._distribution(window, side, spans, context, length)
        return found[0], found[1]

    def _nearest(self, owner: int, spans: NDArray[np.int32]) -> int:
        """Return the number of the teacher's window that shares most text with the tokens of a student's window; -1 if
        no window shares text. `owner` is the number of the example, and `spans` has the code points of the tokens.
        """
        first, last = self._bounds[owner]
        begins, ends = self._outputs.begins[first:last], self._outputs.ends[first:last]
        shared = np.minimum(ends, spans[:, 1].max()) - np.maximum(begins, spans[0, 0])
        return first + int(shared.argmax()) if len(shared) and shared.max() > 0 else -1

    def _distribution(
        self, window: int, side: int, spans: NDArray[np.int32], context: NDArray[np.int64], length: int
    ) -> NDArray[np.float32]:
        outputs = self._outputs
        scores = outputs.scores[window, side].astype(np.float64)
        named = int(np.count_nonzero(np.isfinite(scores)))
        others = int(outputs.counts[window]) - named
        shares, rest, null = softened(scores[:named], float(outputs.rests[window, side]), others, self._temperature)
        found = np.zeros(length)
        edges, places = spans[context, side], outputs.places[window, side, :named]
        low, high = spans[context[0], 0], spans[context[-1], 1]
        # A first token that starts at the end of the window is outside of the window, and so is a last token that ends
        # at the start of the window.
        inside = (places >= low) & (places < high) if side == 0 else (places > low) & (places <= high)
        nearest = context[np.abs(edges[None, :] - places[:, None]).argmin(axis=1)]
        np.add.at(found, np.where(inside, nearest, 0), shares)
        unnamed = context[found[context] == 0]
        sharing = unnamed if len(unnamed) else context
        found[sharing] += rest / len(sharing)
        found[0] += null
        shares_of_all: NDArray[np.float32] = (found / found.sum()).astype(np.float32)
        return shares_of_all


def softened(
    scores: NDArray[np.float64], rest: float, others: int, temperature: float
) -> tuple[NDArray[np.float64], float, float]:
    """Return three probabilities at a temperature: of the scored positions, of all others together, and of the null.

    Args:
        scores: the scores over null.
        rest: the common score of the other positions (`TeacherOutputs.rests`).
        others: the number of these other positions.
    """
    every = np.array([0.0, *scores, *([rest] if others else [])]) / temperature
    every -= every.max()
    weights = np.exp(every)
    if others:
        weights[-1] *= others
    weights /= weights.sum()
    return weights[1 : 1 + len(scores)], float(weights[-1]) if others else 0.0, float(weights[0])
