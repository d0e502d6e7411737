"""Mines groups: for each question, passages with the answer, and high-ranking passages without it.

The ranking uses the formula of the shards (`qa_cluster/ranking`). So a reader is trained on wrong passages that it
would also read on a cluster. The same data, settings and seed give the same file. Finished questions stay on disk when
the command is stopped, and the next call resumes after them.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from qa_cluster.documents.corpus import read_documents
from qa_cluster.errors import InvalidInput
from qa_cluster.evaluation.scoring import normalise
from qa_cluster.reading.bundled import bundled_reader
from qa_cluster.reading.manifest import TOKENIZER_FILE
from qa_cluster.reading.tokenization import ReaderTokenizer

from ..examples.data import Dataset, group_line, load_dataset
from ..examples.labelled import NO_ANSWER, UNLABELLED, Labelled
from .pool import Pool, PoolDocument

Progress = Callable[[str, int, int], None]
_SAVED = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class MiningSettings:
    """The settings of the mining of groups.

    Attributes:
        negatives: maximum number of passages without the answer in a group.
        positives: maximum number of passages with the answer in a group.
        depth: number of sentences that are ranked for a question. Half of the negatives have the best ranks. The other
            half is drawn from lower ranks, because the best-ranked passages sometimes answer in different words.
        budget: maximum number of tokens of a passage, like `context_tokens` in the manifest of the reader.
        min_words: minimum number of words of a question. Shorter questions get no mined passages, because any text may
            answer a question such as "What was kept?".
        unlabelled: maximum number of high-ranking passages for a question that contain the words of the answer. Their
            label is unknown; in a training, a teacher (a trained reader) can give it.
    """

    negatives: int = 4
    positives: int = 2
    depth: int = 50
    budget: int = 128
    min_words: int = 6
    unlabelled: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise InvalidInput for the first value that is out of its limits."""
        limits = {"negatives": (0, 100), "positives": (1, 100), "depth": (1, 10_000), "budget": (0, 512)}
        limits |= {"min_words": (0, 1000), "unlabelled": (0, 100), "seed": (0, 2**32 - 1)}
        for name, (low, high) in limits.items():
            if not low <= getattr(self, name) <= high:
                raise InvalidInput(f"{name} is {getattr(self, name)}, must be from {low} to {high}")


def mine(
    data: Sequence[Path],
    out: Path,
    settings: MiningSettings,
    *,
    passages: Sequence[Path] = (),
    corpus: Sequence[Path] = (),
    unlabelled: Path | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> dict[str, Any]:
    """Write the groups of all questions in `data` to `out`. Return numbers by name, such as the numbers of questions,
    groups and passages.

    Args:
        data: training files for `model train`, without groups.
        passages: more training files; their contexts are ranked, their questions are not asked.
        corpus: more files and folders to rank, as for `qa-cluster ingest`.
        unlabelled: the file for pairs of question and passage without a label, if `settings.unlabelled` is above 0;
            otherwise None.

    Raises:
        InvalidInput: a file cannot be read, an output file exists, or its folder is missing. Then no output file is
            written.
    """
    _check(out, settings, unlabelled)
    datasets = [load_dataset(path) for path in data]
    for dataset in datasets:
        if dataset.grouped:
            raise InvalidInput(f"{str(dataset.path)!r} has groups already: name a file of labelled examples")
    questions = _questions(datasets)
    others = [load_dataset(path) for path in passages]
    progress("indexing", 0, 1)
    pool = Pool(_sources([*datasets, *others], corpus), _tokenizer(), budget=settings.budget)
    progress("indexing", 1, 1)
    identity = {"settings": asdict(settings), "documents": pool.digest, "data": [each.sha256 for each in datasets]}
    partial = out.with_name(f"{out.name}.partial")
    made = [json.loads(line) for line in _mined(questions, _Miner(pool, settings), partial, identity, progress)]
    if unlabelled is not None:
        _write(unlabelled, [line for row in made for line in row["unlabelled"]])
    _write(out, [line for row in made for line in row["groups"]])
    partial.unlink()
    return {"documents": len(pool.sources), "sentences": pool.sentences, **_counted(made)}


def _mined(
    questions: Sequence[list[Labelled]], miner: _Miner, partial: Path, identity: dict[str, Any], progress: Progress
) -> list[str]:
    """Return a line of JSON for each question, in order: the result of `_Miner.mined`. The lines that an earlier call
    has written to the file `partial` are not computed again. New lines are added to this file.
    """
    lines = _finished(partial, identity)
    with partial.open("w", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in [json.dumps(identity), *lines]))
        for done, examples in enumerate(questions[len(lines) :], start=len(lines)):
            lines.append(json.dumps(miner.mined(examples), ensure_ascii=False))
            file.write(f"{lines[-1]}\n")
            if done % _SAVED == 0:
                file.flush()
                progress("mining", done, len(questions))
    progress("mining", len(questions), len(questions))
    return lines


def _check(out: Path, settings: MiningSettings, unlabelled: Path | None) -> None:
    for path in (out, unlabelled):
        if path is None:
            continue
        if not path.name.endswith(".jsonl.gz"):
            raise InvalidInput(f"{str(path)!r} must end in .jsonl.gz")
        if not path.absolute().parent.is_dir():
            raise InvalidInput(f"{str(path)!r} cannot be written: the folder does not exist")
        if path.exists():
            raise InvalidInput(f"{str(path)!r} exists: choose a different file, or remove it")
    if (settings.unlabelled > 0) != (unlabelled is not None):
        raise InvalidInput(
            "pairs without a label need both a number for each question and a file"
            f" (--unlabelled-pairs is {settings.unlabelled}, --unlabelled is {unlabelled and str(unlabelled)!r})"
        )


def _tokenizer() -> ReaderTokenizer:
    """Return the tokenizer of the bundled reader, which measures the length of sentences in tokens."""
    return ReaderTokenizer((bundled_reader() / TOKENIZER_FILE).read_bytes())


def _sources(datasets: Sequence[Dataset], corpus: Sequence[Path]) -> Iterator[PoolDocument]:
    for dataset in datasets:
        for example in dataset.examples:
            yield PoolDocument(example.context, example.title, example.section)
    for document in read_documents(corpus):
        yield PoolDocument(document.text, document.title)


def _questions(datasets: Sequence[Dataset]) -> list[list[Labelled]]:
    """Return the labelled examples, as one list for each pair of question and title. Raises InvalidInput if there are
    no labelled examples.
    """
    found: dict[tuple[str, str], list[Labelled]] = {}
    for dataset in datasets:
        for example in dataset.examples:
            if example.answer_start != UNLABELLED:
                found.setdefault((example.question, example.title), []).append(example)
    if not found:
        raise InvalidInput("there is no labelled question in " + ", ".join(repr(str(each.path)) for each in datasets))
    return list(found.values())


def _finished(partial: Path, identity: dict[str, Any]) -> list[str]:
    """Return the lines in the file `partial`, which an earlier call with the same data and settings has finished.
    Return an empty list if there is no file, or if its first line differs from `identity`.
    """
    try:
        first, *lines = partial.read_text(encoding="utf-8").split("\n")
        # the last piece of the text is empty, or a line that was not completely written
        return lines[:-1] if json.loads(first) == identity else []
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot resume from {str(partial)!r}: {error}: remove the file") from error


def _write(path: Path, lines: Sequence[str]) -> None:
    partial = path.with_name(f"{path.name}.writing")
    partial.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))
    partial.replace(path)


def _counted(made: Sequence[dict[str, Any]]) -> dict[str, Any]:
    groups = [json.loads(line) for row in made for line in row["groups"]]
    negatives = sum(len(group["negatives"]) for group in groups)
    return {
        "questions": len(made),
        "groups": len(groups),
        "without_answer": sum(not group["positives"] for group in groups),
        "without_negatives": sum(not group["negatives"] for group in groups),
        "positives": sum(len(group["positives"]) for group in groups),
        "negatives": negatives,
        "unlabelled": sum(len(row["unlabelled"]) for row in made),
    }


class _Miner:
    def __init__(self, pool: Pool, settings: MiningSettings) -> None:
        self._pool = pool
        self._settings = settings

    def mined(self, examples: Sequence[Labelled]) -> dict[str, list[str]]:
        """Return the lines of groups ("groups") and of pairs without a label ("unlabelled") for one question.
        `examples` are all labelled examples of the question.
        """
        first, settings = examples[0], self._settings
        order = random.Random(f"{settings.seed}:mine:{first.question}:{first.title}")
        ranked = self._pool.rank(first.question, settings.depth)
        if len(first.question.split()) < settings.min_words:
            groups = [[self._cut(example, ranked)] for example in examples]
            return {"groups": [_line(group) for group in groups], "unlabelled": []}
        held = [self._cut(example, ranked) for example in examples if example.answer_start >= 0]
        positives = list({(each.context, each.answer_start): each for each in held}.values())
        positives = order.sample(positives, min(len(positives), settings.positives))
        answers = KnownAnswers([example.answer for example in examples if example.answer_start >= 0])
        own = [self._cut(example, ranked) for example in examples if example.answer_start == NO_ANSWER]
        own = [each for each in {each.context: each for each in own}.values() if not answers.occur_in(each.context)]
        own = own[: settings.negatives if positives else max(1, settings.negatives)]
        others, holding = self._others(first, ranked, [*positives, *own], answers)
        wanted = max(0, settings.negatives - len(own))
        best = min(len(others), (wanted + 1) // 2)
        rest = order.sample(others[best:], min(len(others) - best, wanted - best))
        negatives = [*own, *others[:best], *sorted(rest, key=others.index)]
        unlabelled = [each.to_json() for each in holding[: settings.unlabelled]]
        group = [*positives, *negatives]
        return {"groups": [_line(group)] if group else [], "unlabelled": unlabelled}

    def _cut(self, example: Labelled, ranked: Sequence[int]) -> Labelled:
        """Return the example with the part of its context that a shard would give to the reader. `ranked` has the
        numbers of the sentences that rank best for the question.

        If this part does not contain the whole answer, return the example with its whole context.
        """
        pool, document = self._pool, self._pool.document_of(example)
        if example.answer_start < 0:
            return replace(example, context=pool.text(pool.best_passage(document, ranked)))
        start, end = example.answer_start, example.answer_start + len(example.answer)
        passage = pool.passage_at(document, start)
        if not passage.holds(start, end):
            passage = pool.whole(document)
        return replace(example, context=pool.text(passage), answer_start=start - passage.start)

    def _others(
        self, asked: Labelled, ranked: Sequence[int], taken: Sequence[Labelled], answers: KnownAnswers
    ) -> tuple[list[Labelled], list[Labelled]]:
        """Return two lists of examples with the question `asked` and the passages of ranked sentences, the best rank
        first.

        A ranked sentence that is already in an example in `taken`, or in an earlier passage, is skipped.

        The passages of the first list do not contain the words of the answer. The passages of the second list do.

        If no answer is known, any passage on the subject could contain the answer. Then only passages whose title is
        known and differs from the title of the document of `asked` are used. If that title is unknown, no passage is
        used.
        """
        seen = [each.context for each in taken]
        without: list[Labelled] = []
        holding: list[Labelled] = []
        for sentence in ranked:
            text = self._pool.sentence_text(sentence)
            if any(text in other for other in seen):
                continue
            passage = self._pool.passage(sentence)
            source = self._pool.sources[passage.document]
            if not answers.known and (not asked.title or source.title in ("", asked.title)):
                continue
            made = _unanswered(asked, self._pool.text(passage), source)
            if answers.occur_in(made.context):
                holding.append(replace(made, answer_start=UNLABELLED))
            else:
                without.append(made)
            seen.append(made.context)
        return without, holding


def _unanswered(asked: Labelled, context: str, source: PoolDocument) -> Labelled:
    return Labelled(asked.question, context, "", NO_ANSWER, asked.source, source.title, source.section)


def _line(group: Sequence[Labelled]) -> str:
    return group_line(group[0].question, group[0].source, group)


class KnownAnswers:
    """The known answers of a question. Texts are searched for the answers as written, and for the answers as normalised
    for exact match.
    """

    def __init__(self, answers: Sequence[str]) -> None:
        self._normal = [f" {normalise(answer)} " for answer in answers if normalise(answer)]
        self._written = [
            re.compile(r"(?<!\w)" + r"\s+".join(map(re.escape, answer.split())) + r"(?!\w)", re.IGNORECASE)
            for answer in answers
            if answer.strip()
        ]

    @property
    def known(self) -> bool:
        """Whether at least one answer of the question is known."""
        return bool(self._written)

    def occur_in(self, text: str) -> bool:
        """Return whether a text contains one of the answers."""
        normal = f" {normalise(text)} "
        return any(answer in normal for answer in self._normal) or any(
            answer.search(text) is not None for answer in self._written
        )
