"""Measures the reader, the ranking and the whole system, on a temporary cluster or on a running cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from qa_cluster import __version__
from qa_cluster.config import Settings
from qa_cluster.errors import RequestError
from qa_cluster.evaluation.figures import GivenAnswer, recall, recall_by_type, recall_difference
from qa_cluster.evaluation.intervals import LEVEL, SAMPLES
from qa_cluster.evaluation.question_set import QuestionSet
from qa_cluster.reading.tokenization import ReaderTokenizer

from ..provision.storing import store
from ..readers.reader_files import ReaderFiles
from ..servers import model_program
from ..servers.local import cluster_url
from ..terminal import console
from .asking import (
    AnswerRanks,
    JudgedRun,
    ask_all,
    check_documents,
    differences,
    given_answers,
    rank_all,
    report_refused,
)
from .temporary_cluster import check_reader, make_vectors, temporary_cluster


@dataclass(frozen=True)
class EvaluationPlan:
    """The inputs and options of one evaluation.

    Attributes:
        folder: the folder of the reader.
        checkpoint: the folder of a checkpoint to compare with; None: compare with nothing.
        running: whether to ask the running cluster; if false, ask a temporary cluster.
        retriever_k: the maximum number of sentences read for a question.
        limit: the number of questions to ask; None: all questions of the file.
        seed: the random seed of the intervals.
    """

    file: Path
    questions: QuestionSet
    settings: Settings
    folder: Path
    reader: ReaderFiles
    checkpoint: Path | None
    running: bool
    collection: str
    retriever_k: int
    limit: int | None
    seed: int

    @property
    def program_options(self) -> list[str]:
        """The options for the programs of `qa_cluster.models`.

        With these options, a program uses the questions of this evaluation. It uses as many threads as the setting
        `worker_threads` says or, if the setting is 0, one thread for each core.
        """
        threads = self.settings.worker_threads or os.cpu_count() or 1
        limit = [] if self.limit is None else ["--limit", str(self.limit)]
        return [*limit, "--threads", str(threads)]


def measure(plan: EvaluationPlan, *, given: bool, ranking: bool, system: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure the chosen parts. Return the report, and the answers by the name of the method.

    Args:
        given: whether to measure the reader with the contexts of the file.
        ranking: whether to measure the ranking on a cluster.
        system: whether to measure the whole system on a cluster.
    """
    answers: dict[str, Any] = {}
    report = _head(plan)
    reference = _reference(plan) if plan.checkpoint is not None and (ranking or system) else None
    if ranking or system:
        report |= _on_a_cluster(plan, ranking=ranking, system=system, reference=reference, answers=answers)
    if given:
        report["context_given"] = _context_given(plan, answers)
    return report, answers


def _head(plan: EvaluationPlan) -> dict[str, Any]:
    manifest, questions = plan.reader.manifest, plan.questions
    return {
        "qa_cluster": __version__,
        "file": plan.file.name,
        "questions": len(questions.examples),
        "unanswerable": sum(not example.answers for example in questions.examples),
        "questions_cut": _questions_cut(plan),
        "documents": len(questions.documents),
        "reader": manifest.name,
        "context_tokens": manifest.context_tokens,
        "intervals": {"level": LEVEL, "samples": SAMPLES, "seed": plan.seed},
    }


def _questions_cut(plan: EvaluationPlan) -> int:
    """Return the number of questions that have more tokens than the reader's limit. If there are any, print a note."""
    tokenizer, longest = ReaderTokenizer(plan.reader.tokenizer), plan.reader.manifest.max_question_tokens
    cut = sum(tokenizer.encode_question(example.question, longest).truncated for example in plan.questions.examples)
    if cut:
        console.notice(f"{console.counted(cut, 'question')} cut to {longest} tokens, the reader's limit for a question")
    return cut


def _context_given(plan: EvaluationPlan, answers: dict[str, Any]) -> dict[str, Any]:
    arguments = [str(plan.folder), str(plan.file), "--seed", str(plan.seed), "--answers", *plan.program_options]
    console.step("measuring the reader on the given contexts")
    found = model_program.result_of("evaluate", *arguments)
    answers["context given"] = found.pop("answers")
    return found


def _reference(plan: EvaluationPlan) -> dict[str, Any]:
    console.step("reading the best sentences of BM25 with PyTorch")
    arguments = [str(plan.checkpoint), str(plan.file), "--k", str(plan.retriever_k), *plan.program_options]
    return model_program.result_of("reference", *arguments)


def _on_a_cluster(
    plan: EvaluationPlan, *, ranking: bool, system: bool, reference: dict[str, Any] | None, answers: dict[str, Any]
) -> dict[str, Any]:
    with _cluster(plan) as (settings, context_tokens):
        report: dict[str, Any] = {"context_tokens": context_tokens}
        if ranking:
            with console.progress("ranking", len(plan.questions.examples)) as advance:
                ranks = rank_all(settings, plan.questions, plan.collection, advance)
            report["ranking"] = _ranking(plan, ranks, reference)
        if system:
            report["system"] = _system(plan, settings, reference, answers)
    return report


@contextmanager
def _cluster(plan: EvaluationPlan) -> Iterator[tuple[Settings, int]]:
    """Yield the settings with the address of a cluster that has the documents of the question set. Also yield the
    context budget of the cluster's reader: the maximum tokens of a sentence with its neighbours.

    The cluster is the running cluster, or a temporary cluster that is stopped at the end of the `with` block.
    """
    if plan.running:
        settings = replace(plan.settings, cluster_url=cluster_url(plan.settings))
        context_tokens = check_reader(settings, plan.reader, plan.folder)
        with console.progress("comparing documents", len(plan.questions.documents)) as advance:
            check_documents(settings, plan.questions, str(plan.file), plan.collection, advance)
        yield settings, context_tokens
        return
    with temporary_cluster(plan.settings, plan.reader) as settings:
        store(settings, ((plan.file.name, document) for document in plan.questions.documents))
        make_vectors(settings)
        yield settings, plan.reader.manifest.context_tokens


def _ranking(plan: EvaluationPlan, found: AnswerRanks, reference: dict[str, Any] | None) -> dict[str, Any]:
    """Return the part of the report about the ranking: its recall, for the questions whose answer is within one
    sentence. With a `reference` (the result of BM25), also return the recall of BM25 and the differences.
    """
    known = [number for number, gold in enumerate(plan.questions.gold) if gold]
    examples = [plan.questions.examples[number] for number in known]
    ranks = [found.ranks[number] for number in known]
    report: dict[str, Any] = {
        "sentences": found.sentences,
        **asdict(recall(ranks, seed=plan.seed)),
        "by_type": {name: asdict(part) for name, part in recall_by_type(examples, ranks, seed=plan.seed).items()},
    }
    if reference is not None:
        reference_ranks = [reference["places"][number] for number in known]
        minus = recall_difference(ranks, reference_ranks, seed=plan.seed)
        report["reference"] = asdict(recall(reference_ranks, seed=plan.seed))
        report["difference"] = {depth: asdict(interval) for depth, interval in minus.items()}
    return report


def _system(
    plan: EvaluationPlan, settings: Settings, reference: dict[str, Any] | None, answers: dict[str, Any]
) -> dict[str, Any]:
    runs = [_ask(plan, settings, waves=False), _ask(plan, settings, waves=True)]
    references = [] if reference is None else _reference_runs(plan, reference)
    for run in (*runs, *references):
        answers[run.name] = run.answers(plan.questions)
    return {
        "retriever_k": plan.retriever_k,
        "waves": list(settings.waves),
        "runs": [run.report(plan.questions, plan.seed) for run in (*runs, *references)],
        "differences": differences(runs[1:], runs[:1], plan.seed) + differences(runs, references, plan.seed),
    }


def _ask(plan: EvaluationPlan, settings: Settings, *, waves: bool) -> JudgedRun:
    name = "in waves" if waves else f"all {plan.retriever_k}"
    with console.progress(f"asking, {name}", len(plan.questions.examples)) as advance:
        texts = [example.question for example in plan.questions.examples]
        results = ask_all(
            settings,
            texts,
            collection=plan.collection,
            waves=waves,
            retriever_k=plan.retriever_k,
            advance=advance,
        )
    report_refused(texts, results)
    read = [0 if isinstance(result, RequestError) else result.usage.sentences_read for result in results]
    return JudgedRun.of(name, plan.questions, given_answers(results), read)


def _reference_runs(plan: EvaluationPlan, reference: dict[str, Any]) -> list[JudgedRun]:
    read = [min(plan.retriever_k, reference["sentences"])] * len(plan.questions.examples)
    names = {"plain": "PyTorch on BM25", "ranked": f"the same + {reference['rank_weight']:g} × BM25"}
    return [
        JudgedRun.of(name, plan.questions, [GivenAnswer(text, score > 0) for text, score in reference[key]], read)
        for key, name in names.items()
    ]
