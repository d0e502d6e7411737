"""Holds examples out of the training data, spread over its sources.

The training uses no context that shares a sentence with a held-out context. Sentences of at most 12 characters (blanks
are not counted) are ignored, unless a context has only such sentences.
"""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qa_cluster.errors import InvalidInput

from .labelled import Labelled

MAX_LOSS = 8
"""A context is held out only if the training loses at most this number of other examples for each held-out example."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_BLANK = re.compile(r"\s+")
_SHORT = 12


@dataclass(frozen=True, slots=True)
class Split:
    """The held-out examples, the training examples of each file (in the order of the files), and the number of lost
    examples.

    A lost example is neither held out nor trained on, because its context shares a sentence with a held-out context.
    """

    held_out: list[Labelled]
    training: list[list[Labelled]]
    lost: int


def hold_out(files: Sequence[Sequence[Labelled]], count: int, seed: int) -> Split:
    """Hold out about `count` examples of the last file, and remove all examples that share sentences with them.

    Contexts of a file can be overlapping windows of one text, and another file can ask about the same text. So the
    training must not see any sentence of a held-out context. Each source contributes its share of the examples.
    """
    if count == 0:
        return Split([], [list(examples) for examples in files], 0)
    if count > len(files[-1]) // 2:
        raise InvalidInput(f"cannot hold out {count} of {len(files[-1])} examples, at most half of the last file")
    parts = {example.context: sentence_keys(example.context) for examples in files for example in examples}
    numbers = Counter(example.context for examples in files for example in examples)
    chosen = _choose(files[-1], count, random.Random(f"{seed}:hold out"), parts, numbers)
    held = [example for example in files[-1] if parts[example.context] <= chosen]
    if not held:
        raise InvalidInput(
            f"no example can be held out: each shares sentences with more than {MAX_LOSS} other examples, which "
            "could then not be trained on; use a file whose contexts share less text, or train without hold_out"
        )
    training = [[example for example in examples if not parts[example.context] & chosen] for examples in files]
    if not all(training):
        number = next(number for number, examples in enumerate(training, start=1) if not examples)
        raise InvalidInput(
            f"holding out {count} examples leaves no example of file {number} to train on: hold out fewer"
        )
    lost = sum(map(len, files)) - sum(map(len, training)) - len(held)
    return Split(held, training, lost)


def sentence_keys(context: str) -> frozenset[str]:
    """Return the sentences of a context, in lower case without blanks.

    Sentences of at most `_SHORT` characters (blanks are not counted), which many texts share, are left out, unless the
    context has only such sentences.
    """
    keys = [_BLANK.sub("", sentence).lower() for sentence in _SENTENCE_END.split(context)]
    return frozenset(key for key in keys if len(key) > _SHORT) or frozenset(keys)


def _choose(
    examples: Sequence[Labelled],
    count: int,
    order: random.Random,
    parts: Mapping[str, frozenset[str]],
    numbers: Mapping[str, int],
) -> set[str]:
    """Choose contexts to hold out, and return the keys of their sentences (`sentence_keys`).

    Args:
        examples: the examples of the file of which some are held out.
        count: about how many examples to hold out.
        order: the source of random numbers.
        parts: the keys of the sentences of each context.
        numbers: the number of examples of each context, in all files.
    """
    holders: defaultdict[str, list[str]] = defaultdict(list)
    users: Counter[str] = Counter()
    for context, number in numbers.items():
        for key in parts[context]:
            holders[key].append(context)
            users[key] += number
    by_source: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for example in examples:
        by_source[example.source][example.context] += 1
    chosen: set[str] = set()
    for source in sorted(by_source):
        contexts = by_source[source]
        wanted = count * contexts.total() / len(examples)
        taken = sum(number for context, number in contexts.items() if parts[context] <= chosen)
        shuffled = sorted(contexts)
        order.shuffle(shuffled)
        for context in shuffled:
            if taken >= wanted:
                break
            fresh = parts[context] - chosen
            most = (MAX_LOSS + 1) * contexts[context]
            if not fresh or max(users[key] for key in fresh) > most:
                continue  # a quick check: without it, the sum below can have thousands of contexts
            touched = {holder for key in fresh for holder in holders[key]}
            if sum(numbers[holder] for holder in touched) <= most:
                chosen |= fresh
                # other contexts are held out, too, if all their sentences are chosen now: for example, a context
                # between two chosen contexts that overlap with it
                taken += sum(contexts[holder] for holder in touched if parts[holder] <= chosen)
    return chosen
