"""Measures a network in training: exact match and F1 in plain PyTorch, on the given context of each question."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from qa_cluster.evaluation.scoring import exact_match, f1

from ..examples.labelled import Labelled
from .base import BaseNetwork, Machine
from .encoding import WindowEncoder, Windows
from .padding import logits_of

MAX_ANSWER_TOKENS = 30
WINDOW_TOKENS = 384
DOC_STRIDE = 128
_BATCH = 16


def predict(
    base: BaseNetwork, windows: Windows, contexts: Sequence[str], device: str, report: Callable[[int, int], None]
) -> tuple[list[str], NDArray[np.float64]]:
    """Return the text of the best span of each context, and the score over null of this span, float64 [contexts]. If a
    context has no span, the text is empty and the score is -inf.

    The score of a span is the sum of its start and end logits, minus the sum of the logits at position 0. If a context
    has several windows, the best span of all windows is used.
    """
    texts = [""] * len(contexts)
    scores = np.full(len(contexts), -np.inf)
    base.network.eval()
    order = np.argsort(windows.lengths, kind="stable")
    for first in range(0, len(order), _BATCH):
        rows = order[first : first + _BATCH]
        for row, (starts, ends) in zip(rows, logits_of(base, windows, rows, Machine(device, None)), strict=True):
            spans = windows.spans[windows.bounds[row] : windows.bounds[row + 1]]
            score, begin, end = best_span(starts, ends, spans)
            owner = windows.owners[row]
            if score > scores[owner]:
                scores[owner], texts[owner] = score, contexts[owner][begin:end]
        report(min(first + _BATCH, len(order)), len(order))
    return texts, scores


def best_span(start: NDArray[np.float32], end: NDArray[np.float32], spans: NDArray[np.int32]) -> tuple[float, int, int]:
    """Return the score over null and the code points of a window's best span.

    `start` and `end` are the logits [padded length]; `spans` [tokens, 2] has each token's code points. If the window
    has no tokens of the context, the score is -inf.
    """
    context = np.flatnonzero(spans[:, 0] >= 0)
    if not len(context):
        return -np.inf, 0, 0
    pairs = start[context][:, None] + end[context][None, :]
    allowed = np.triu(np.ones(pairs.shape, bool)) & ~np.triu(np.ones(pairs.shape, bool), MAX_ANSWER_TOKENS)
    pairs = np.where(allowed, pairs, -np.inf)
    best = int(pairs.argmax())
    first, last = context[best // len(context)], context[best % len(context)]
    return float(pairs.flat[best]) - float(start[0] + end[0]), int(spans[first, 0]), int(spans[last, 1])


def reading_encoder(base: BaseNetwork, *, titles: bool) -> WindowEncoder:
    """Return an encoder that makes windows of `WINDOW_TOKENS` tokens, or fewer if the network reads fewer.

    `titles` says whether the network was trained with prefixes. If it was, all windows have prefixes.
    """
    length = min(base.max_tokens, WINDOW_TOKENS)
    return WindowEncoder(
        base.tokenizer,
        max_tokens=length,
        doc_stride=min(DOC_STRIDE, length // 3),
        max_question_tokens=min(64, length // 3),
        title_share=float(titles),
    )


def measure(
    base: BaseNetwork,
    examples: Sequence[Labelled],
    device: str,
    report: Callable[[int, int], None],
    *,
    titles: bool = False,
) -> dict[str, float]:
    """Return, by name, the exact match and F1 of the questions with an answer, `separation`, and the numbers of
    questions. `titles` is as in `reading_encoder`.

    `separation` is the share of pairs in which a question with an answer scores higher than a question without an
    answer (the area under the ROC curve). A figure is missing if there are no questions for it.
    """
    encoder = reading_encoder(base, titles=titles)
    texts, scores = predict(base, encoder.windows(examples), [row.context for row in examples], device, report)
    answered = [number for number, example in enumerate(examples) if example.answer_start >= 0]
    found: dict[str, float] = {"questions": len(examples), "answered": len(answered)}
    if answered:
        pairs = [(texts[number], (examples[number].answer,)) for number in answered]
        found["exact_match"] = round(sum(exact_match(*pair) for pair in pairs) / len(pairs), 4)
        found["f1"] = round(sum(f1(*pair) for pair in pairs) / len(pairs), 4)
    others = np.setdiff1d(np.arange(len(examples)), answered)
    if answered and len(others):
        found["separation"] = round(float(np.mean(scores[answered][:, None] > scores[others][None, :])), 4)
    return found
