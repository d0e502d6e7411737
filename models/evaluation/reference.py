"""The baseline for the whole system: BM25 ranks sentences, and PyTorch reads the best sentences.

The baseline is a simple system of standard parts. `bm25s` ranks the sentences with its own analysis and defaults. The
checkpoint reads each of the best k sentences of a question without its neighbours, in float32. The answer is the span
with the best score over `[CLS]`. The baseline has the same sentences as the cluster, but shares no code that ranks
sentences, makes the inputs of the network, or chooses spans.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qa_cluster.errors import InvalidInput, ModelError
from qa_cluster.evaluation.figures import DEPTHS, first_place
from qa_cluster.evaluation.question_set import load_question_set
from qa_cluster.reading.manifest import TOKENIZER_FILE

from ..checkpoints.loading import LOCAL, one_line, require_packages
from ..checkpoints.stored_tokenizer import use_stored
from .evaluate import Progress, silent

MAX_TOKENS = 384
MAX_ANSWER_TOKENS = 30
BATCH = 32
MAX_K = 64
_EXTRA = ("bm25s", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class Reference:
    """The results of the baseline for every question.

    Attributes:
        sentences: the number of sentences in the corpus.
        places: for each question, the rank, from 0, of the first sentence with the answer; None if no ranked sentence
            has the answer.
        plain: for each question, the answer with the best score over null, and its score over null.
        ranked: for each question, the answer with the best sum of score over null and `rank_weight` times the BM25
            score, and its score over null.
    """

    checkpoint: str
    k: int
    rank_weight: float
    sentences: int
    places: list[int | None]
    plain: list[tuple[str, float]]
    ranked: list[tuple[str, float]]


def run_reference(
    checkpoint: Path,
    dataset: Path,
    *,
    k: int = 8,
    rank_weight: float = 0.3,
    limit: int | None = None,
    threads: int = 2,
    progress: Progress = silent,
) -> Reference:
    """Answer the questions of `dataset` from the sentences of its contexts.

    With `limit`, at most this number of questions is asked, spread over the file. The sentences of all contexts are
    ranked.
    """
    require_packages("the baseline", "bench", _EXTRA)
    if not 1 <= k <= MAX_K:
        raise InvalidInput(f"k is {k}, must be from 1 to {MAX_K}")
    questions = load_question_set(dataset, limit=limit)
    texts = [example.question for example in questions.examples]
    sentences = questions.all_sentences()
    ranked = rank(sentences, texts, max(k, *DEPTHS))
    places = [
        first_place([sentences[number] for number, _ in found], gold)
        for found, gold in zip(ranked, questions.gold, strict=True)
    ]
    reader = PlainReader(checkpoint, threads)
    pairs = [(text, sentences[number]) for text, found in zip(texts, ranked, strict=True) for number, _ in found[:k]]
    spans = iter(reader.read(pairs, progress))
    readings = [[(*next(spans), value) for _, value in found[:k]] for found in ranked]
    return Reference(
        checkpoint=str(checkpoint),
        k=k,
        rank_weight=rank_weight,
        sentences=len(sentences),
        places=places,
        plain=[_best(found, 0.0) for found in readings],
        ranked=[_best(found, rank_weight) for found in readings],
    )


def rank(sentences: Sequence[str], questions: Sequence[str], count: int) -> list[list[tuple[int, float]]]:
    """Return, for every question, the numbers (from 0) and the BM25 scores of the best `count` sentences,
    best first.
    """
    import bm25s
    import Stemmer

    def tokens(texts: Sequence[str]) -> Any:
        return bm25s.tokenize(list(texts), stopwords="en", stemmer=Stemmer.Stemmer("english"), show_progress=False)

    index = bm25s.BM25()
    index.index(tokens(sentences), show_progress=False)
    numbers, values = index.retrieve(tokens(questions), k=min(count, len(sentences)), show_progress=False)
    return [list(zip(row.tolist(), scores.tolist(), strict=True)) for row, scores in zip(numbers, values, strict=True)]


class PlainReader:
    """Reads pairs of question and sentence with transformers and PyTorch. Raises ModelError if the checkpoint cannot be
    loaded.
    """

    def __init__(self, checkpoint: Path, threads: int) -> None:
        import torch
        from transformers import AutoModelForQuestionAnswering, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        if not checkpoint.is_dir():
            raise ModelError(f"no checkpoint folder {str(checkpoint)!r}")
        torch.set_num_threads(threads)
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(checkpoint, **LOCAL)
            if (stored := checkpoint / TOKENIZER_FILE).is_file():
                use_stored(self._tokenizer, stored)
            self._network = AutoModelForQuestionAnswering.from_pretrained(
                checkpoint, **LOCAL, dtype=torch.float32
            ).eval()
        except Exception as error:  # corrupt files raise anything from OSError to safetensors' own types
            raise ModelError(f"cannot load checkpoint {str(checkpoint)!r}: {one_line(error)}") from error

    def read(self, pairs: Sequence[tuple[str, str]], progress: Progress) -> list[tuple[str, float]]:
        """Return the text of the best span of every pair of question and sentence, and its score over null,
        in order.
        """
        found = [("", 0.0)] * len(pairs)
        order = sorted(range(len(pairs)), key=lambda i: len(pairs[i][1]))
        for first in range(0, len(order), BATCH):
            rows = order[first : first + BATCH]
            for row, answer in zip(rows, self._read_batch([pairs[row] for row in rows]), strict=True):
                found[row] = answer
            progress("reading with PyTorch", first + len(rows), len(order))
        return found

    def _read_batch(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, float]]:
        import torch

        encoded = self._tokenizer(
            [question for question, _ in pairs],
            [sentence for _, sentence in pairs],
            truncation="only_second",
            max_length=min(MAX_TOKENS, self._tokenizer.model_max_length),
            padding=True,
            return_offsets_mapping=True,
            return_tensors="pt",
        )
        offsets = encoded.pop("offset_mapping").tolist()
        with torch.inference_mode():
            output = self._network(**encoded)
        length = output.start_logits.shape[1]
        allowed = torch.ones(length, length).triu().tril(MAX_ANSWER_TOKENS - 1).bool()
        answers = []
        for row, (_, sentence) in enumerate(pairs):
            inside = torch.tensor([part == 1 for part in encoded.sequence_ids(row)])
            start, end = output.start_logits[row], output.end_logits[row]
            scores = torch.where(allowed & inside[:, None] & inside[None, :], start[:, None] + end[None, :], -torch.inf)
            first, last = divmod(int(scores.argmax()), length)
            text = sentence[offsets[row][first][0] : offsets[row][last][1]]
            answers.append((text, float(scores[first, last] - start[0] - end[0])))
        return answers


def _best(readings: Sequence[tuple[str, float, float]], rank_weight: float) -> tuple[str, float]:
    """Return the text and the score over null of the best reading. A reading is a text, its score over null, and the
    BM25 score of its sentence. The best reading has the highest sum of score over null and `rank_weight` times the BM25
    score.
    """
    text, score, _ = max(readings, key=lambda item: item[1] + rank_weight * item[2])
    return text, score
