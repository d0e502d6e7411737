"""The questions that an encoder is trained on, with their passages."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...examples.labelled import ALONE, Labelled

# An answer that starts after this number of characters is probably cut off, because a passage has at most 128 tokens.
_LATEST_ANSWER = 450
# An answer with fewer characters, such as "no" or "10", also occurs in passages that do not answer the question.
_LEAST_ANSWER = 4


@dataclass(frozen=True, slots=True)
class RankingExample:
    """A question (`text`), the passage with its answer, and mined passages without the answer."""

    text: str
    passage: Labelled
    negatives: tuple[Labelled, ...] = ()

    def may_be_answered_by(self, passage: Labelled) -> bool:
        """Return whether the passage is the question's own passage, or contains the text of the question's answer
        (upper and lower case do not matter).

        An answer of fewer than `_LEAST_ANSWER` characters is not searched in other passages.
        """
        answer = self.passage.answer.lower()
        return passage.context == self.passage.context or (
            len(answer) >= _LEAST_ANSWER and answer in passage.context.lower()
        )


def ranking_examples(examples: Sequence[Labelled]) -> list[RankingExample]:
    """Return the questions that have a passage with an answer near the start of the passage (`_LATEST_ANSWER`), each
    with the first such passage.

    Only questions of groups have negatives.
    """
    groups: dict[int, list[Labelled]] = {}
    for number, example in enumerate(examples):
        groups.setdefault(example.group if example.group != ALONE else -2 - number, []).append(example)
    found = []
    for group in groups.values():
        answered = [each for each in group if 0 <= each.answer_start <= _LATEST_ANSWER]
        if answered:
            first = answered[0]
            found.append(RankingExample(first.question, first, tuple(each for each in group if each.answer_start < 0)))
    return found
