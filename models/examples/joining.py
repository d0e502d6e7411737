"""Makes longer contexts: joins the context of an example with other contexts of the same file.

A reader that is trained on single sentences never sees an answer among other sentences, or at a late position. Each of
the other contexts shares rare words with the example's context, or is random. No other context contains a known answer
to the question.
"""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from .holdout import sentence_keys
from .labelled import NO_ANSWER, UNLABELLED, Labelled

CHARACTERS_PER_TOKEN = 4
MIN_QUESTION_WORDS = 6
MAX_CONTEXTS_OF_A_QUESTION = 2
_RARE_WORDS = 6
_MAX_CONTEXTS_OF_A_RARE_WORD = 40
_WORD = re.compile(r"\w{4,}")


def join_contexts(examples: Sequence[Labelled], *, share: float, max_tokens: int, seed: str) -> list[Labelled]:
    """Return the examples in order. About the fraction `share` (0 to 1) of the examples with a specific question get a
    joined context.

    A joined context has at most about `max_tokens` tokens. A specific question has at least six words, is asked of at
    most two contexts, and has a label. A joined context has no title, because it comes from several documents.
    """
    if share == 0:
        return list(examples)
    order = random.Random(seed)
    neighbours = _Neighbours(examples)
    return [
        _joined(example, neighbours, order, max_tokens * CHARACTERS_PER_TOKEN)
        if order.random() < share and neighbours.is_definite(example.question) and example.answer_start != UNLABELLED
        else example
        for example in examples
    ]


class _Neighbours:
    """Finds the contexts that share rare words with a context. `answers` has the known answers of each question, in
    lower case.
    """

    def __init__(self, examples: Sequence[Labelled]) -> None:
        self.answers: defaultdict[str, set[str]] = defaultdict(set)
        contexts_of: defaultdict[str, set[str]] = defaultdict(set)
        for example in examples:
            contexts_of[example.question].add(example.context)
            if example.answer_start >= 0:
                self.answers[example.question].add(example.answer.lower())
        self._asked = {question: len(contexts) for question, contexts in contexts_of.items()}
        self._contexts = sorted({example.context for example in examples})
        self._words = {context: set(_WORD.findall(context.lower())) for context in self._contexts}
        self._frequency = Counter(word for words in self._words.values() for word in words)
        self._holders: defaultdict[str, list[str]] = defaultdict(list)
        for context in self._contexts:
            for word in self._words[context]:
                if 2 <= self._frequency[word] <= _MAX_CONTEXTS_OF_A_RARE_WORD:
                    self._holders[word].append(context)

    def is_definite(self, question: str) -> bool:
        return len(question.split()) >= MIN_QUESTION_WORDS and self._asked[question] <= MAX_CONTEXTS_OF_A_QUESTION

    def of(self, example: Labelled, order: random.Random) -> list[str]:
        """Return contexts to join with the example's context: similar contexts first, then random contexts."""
        rare = sorted(
            (word for word in self._words[example.context] if word in self._holders),
            key=lambda word: (self._frequency[word], word),
        )[:_RARE_WORDS]
        # Without a known answer, similar contexts are not used, because they could contain an answer.
        known = bool(self.answers.get(example.question))
        similar = sorted({held for word in rare for held in self._holders[word]}) if known else []
        order.shuffle(similar)
        return similar + [order.choice(self._contexts) for _ in range(4)]


def _joined(example: Labelled, neighbours: _Neighbours, order: random.Random, limit: int) -> Labelled:
    wanted = order.uniform(len(example.context), limit)
    answers = neighbours.answers.get(example.question, set())
    seen = set(sentence_keys(example.context))
    before: list[str] = []
    after: list[str] = []
    length = len(example.context)
    for other in neighbours.of(example, order):
        keys = sentence_keys(other)
        lowered = other.lower()
        if length + len(other) > wanted or keys & seen or any(answer in lowered for answer in answers):
            continue
        seen |= keys
        length += len(other) + 1
        (before if order.random() < 0.5 else after).append(other)
    lead = "".join(f"{other} " for other in before)
    context = lead + " ".join([example.context, *after])
    start = example.answer_start if example.answer_start == NO_ANSWER else example.answer_start + len(lead)
    return Labelled(example.question, context, example.answer, start, example.source)
