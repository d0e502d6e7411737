"""Asks a cluster the questions of a question set, and computes the figures of its ranking and of its answers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from qa_cluster.clients.async_cluster_client import AsyncClusterClient, run_together
from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError, NotFound, QAError, RequestError
from qa_cluster.evaluation.figures import (
    DEPTHS,
    GivenAnswer,
    Verdicts,
    answer_rows,
    figures,
    figures_by_type,
    first_place,
    judge,
    trust,
)
from qa_cluster.evaluation.intervals import difference_interval, mean_interval
from qa_cluster.evaluation.question_set import QuestionSet
from qa_cluster.routing.on_behalf import bulk_work
from qa_cluster.types import AskResult

from ..servers.signals import run_until_signal
from ..terminal import console
from ..terminal.console import Advance

CONCURRENCY = 4
_TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class AnswerRanks:
    """For each question, the rank of the first sentence that contains an answer.

    Attributes:
        ranks: the rank of this sentence for each question, counted from 0; None if none of the first `max(DEPTHS)`
            sentences contains an answer.
        sentences: the number of sentences in the collection.
    """

    ranks: list[int | None]
    sentences: int


def rank_all(settings: Settings, questions: QuestionSet, collection: str, advance: Advance) -> AnswerRanks:
    """Rank the sentences of a collection for every question, by their words (the default of `search`). `advance` gets
    the number of ranked questions. Raises ClusterError for the first question that fails.
    """
    ranks: dict[int, int | None] = {}
    sentences = 0
    numbers = iter(range(len(questions.examples)))

    async def work(client: AsyncClusterClient) -> None:
        nonlocal sentences
        for number in numbers:
            text = questions.examples[number].question
            try:
                found = await client.search(text, top_k=max(DEPTHS), collection=collection, timeout=_TIMEOUT_SECONDS)
            except QAError as error:
                raise ClusterError(
                    f"the sentences for question {number + 1}, {text!r}, could not be ranked: {error}"
                ) from error
            sentences = found.sentences
            ranked = [_sentence(questions, hit.document_id, hit.passage_id) for hit in found.hits]
            ranks[number] = first_place(ranked, questions.gold[number])
            advance(len(ranks))

    run_until_signal(_in_parallel(settings, [work] * CONCURRENCY))
    return AnswerRanks([ranks[number] for number in range(len(ranks))], sentences)


def _sentence(questions: QuestionSet, document_id: str, passage_id: str) -> str:
    """Return the text of a ranked sentence, from the question set. Return an empty text if the question set does not
    have this document or sentence. `passage_id` ends in the number of the sentence in its document, from 0.
    """
    sentences, number = questions.sentences.get(document_id, []), int(passage_id.rpartition(":")[2])
    return sentences[number] if number < len(sentences) else ""


def ask_all(
    settings: Settings,
    questions: Sequence[str],
    *,
    collection: str,
    waves: bool,
    retriever_k: int,
    advance: Advance,
    top_k: int = 1,
) -> list[AskResult | RequestError]:
    """Ask every question without the answer caches. Return the results in the order of the questions.

    The result of a refused question is its error. With `waves`, the reader reads in waves and can stop after each wave.
    Without `waves`, the reader reads all `retriever_k` best sentences.

    Each other result has the best `top_k` spans, even if they are improbable, and says whether the question is
    answerable. Any other error of a question is raised. `advance` gets the number of finished questions.
    """
    results: dict[int, AskResult | RequestError] = {}
    numbers = iter(range(len(questions)))

    async def work(client: AsyncClusterClient) -> None:
        for number in numbers:
            text = questions[number]
            try:
                results[number] = await client.ask(
                    text,
                    top_k=top_k,
                    collection=collection,
                    retriever_k=retriever_k,
                    waves=waves,
                    timeout=_TIMEOUT_SECONDS,
                    cache="off",
                    no_answer=False,
                )
            except RequestError as error:
                results[number] = error
            except QAError as error:
                raise type(error)(f"question {number + 1}, {text!r}, was not answered: {error}") from error
            advance(len(results))

    run_until_signal(_in_parallel(settings, [work] * CONCURRENCY))
    return [results[number] for number in range(len(results))]


def report_refused(questions: Sequence[str], results: Sequence[object]) -> None:
    """Print how many questions were refused, and the first error. If no question was refused, print nothing. `results`
    has the result of each question; the result of a refused question is its RequestError.
    """
    refused = [(number, error) for number, error in enumerate(results) if isinstance(error, RequestError)]
    if refused:
        number, error = refused[0]
        console.notice(
            f"{console.counted(len(refused), 'question')} refused and counted as not answered; the first is question"
            f" {number + 1}, {questions[number][:80]!r}: {error}"
        )


def check_documents(settings: Settings, questions: QuestionSet, file: str, collection: str, advance: Advance) -> None:
    """Raise ClusterError if the collection lacks a document of the question set, or has a document with the same id but
    a different text. `file` names the question set in the error.
    """
    documents = iter(questions.documents)
    done = 0

    async def work(client: AsyncClusterClient) -> None:
        nonlocal done
        for document in documents:
            try:
                text = (await client.get_document(document.id, collection=collection)).text
            except NotFound:
                text = ""
            if text != document.text:
                raise ClusterError(
                    f"the cluster does not have document {document.id!r} with the text of {file}: run `qa-cluster"
                    f" ingest {file}` first, or leave out --running"
                )
            done += 1
            advance(done)

    run_until_signal(_in_parallel(settings, [work] * CONCURRENCY))


async def _in_parallel(
    settings: Settings, jobs: Sequence[Callable[[AsyncClusterClient], Coroutine[Any, Any, None]]]
) -> None:
    """Run the jobs with one client, as bulk work, which has a lower priority than the questions of users.

    The first error ends all jobs, and is raised without its exception group.
    """
    async with AsyncClusterClient(settings) as client:
        with bulk_work():
            await run_together(job(client) for job in jobs)


def given_answers(results: Sequence[AskResult | RequestError]) -> list[GivenAnswer]:
    """Return the best answer to every question, in the order of the questions. A refused question counts as not
    answered.
    """
    return [
        GivenAnswer("", answerable=False)
        if isinstance(result, RequestError) or result.best is None
        else GivenAnswer(result.best.answer, result.answerable, result.best.score)
        for result in results
    ]


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """The answers of one method to all questions, with the verdict (exact match and F1) on each answer.

    A method is a way to read sentences, such as "in waves".

    Attributes:
        name: the name of the method in the report.
        given: the answer to each question.
        verdicts: the verdict on each answer.
        sentences_read: for each question, the number of sentences that the reader read.
    """

    name: str
    given: list[GivenAnswer]
    verdicts: Verdicts
    sentences_read: list[int]

    @classmethod
    def of(cls, name: str, questions: QuestionSet, given: list[GivenAnswer], sentences_read: list[int]) -> JudgedRun:
        """Judge the answers in `given`, and return them with their verdicts."""
        return cls(name, given, judge(questions.examples, given), sentences_read)

    def report(self, questions: QuestionSet, seed: int) -> dict[str, Any]:
        """Return the figures of this method for the report, as values that JSON can represent. `seed` is the random
        seed of the intervals.
        """
        examples = questions.examples
        trusted = trust(self.given, examples)
        by_type = figures_by_type(examples, self.verdicts, seed=seed)
        return {
            "name": self.name,
            **asdict(figures(examples, self.verdicts, seed=seed)),
            "sentences_read": asdict(mean_interval(self.sentences_read, seed=seed)),
            "by_type": {name: asdict(found) for name, found in by_type.items()},
            "trust": asdict(trusted) if trusted else None,
        }

    def answers(self, questions: QuestionSet) -> list[dict[str, object]]:
        """Return one row for each question, with its answer, the verdict and the number of sentences read."""
        rows = answer_rows(questions.examples, self.given, self.verdicts)
        return [{**row, "sentences_read": read} for row, read in zip(rows, self.sentences_read, strict=True)]


def differences(runs: Sequence[JudgedRun], references: Sequence[JudgedRun], seed: int) -> list[dict[str, Any]]:
    """Return the mean differences in exact match and F1 of each run minus each reference, with their intervals. A run
    that is itself a reference is not compared with itself. `seed` is the random seed of the intervals.
    """
    return [
        {
            "of": run.name,
            "minus": reference.name,
            "exact_match": asdict(
                difference_interval(run.verdicts.exact_match, reference.verdicts.exact_match, seed=seed)
            ),
            "f1": asdict(difference_interval(run.verdicts.f1, reference.verdicts.f1, seed=seed)),
        }
        for run in runs
        for reference in references
        if run is not reference
    ]
