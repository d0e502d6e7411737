"""Measures the answers to plain questions, which have no contexts, on a temporary cluster or on a running cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from qa_cluster import __version__
from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.config import Settings
from qa_cluster.documents.corpus import read_from
from qa_cluster.documents.folder_reading import ErrorObserver, FolderReading
from qa_cluster.documents.folders.rules import FolderRules
from qa_cluster.errors import InvalidInput, RequestError
from qa_cluster.evaluation.choice_fit import fit_choice
from qa_cluster.evaluation.intervals import LEVEL, SAMPLES
from qa_cluster.evaluation.plain_figures import (
    FIRST,
    GivenAnswers,
    GivenSpan,
    by_label,
    costs,
    judged,
    plain_figures,
    plain_rows,
)
from qa_cluster.evaluation.plain_questions import PlainQuestion
from qa_cluster.reading.manifest import MANIFEST_FILE, Manifest
from qa_cluster.sources.process.extractor import Extractor
from qa_cluster.types import AskResult

from ..provision.storing import store
from ..readers.reader_files import ReaderFiles
from ..servers.local import cluster_url
from ..terminal import console
from .asking import ask_all, report_refused
from .temporary_cluster import default_reader, make_vectors, temporary_cluster

MAX_FITTED = 20
"""The maximum number of answers to each question that the option --fit uses."""


@dataclass(frozen=True)
class PlainQuestionPlan:
    """The inputs and options of one evaluation with plain questions.

    Attributes:
        documents: the file or folder with the documents for the temporary cluster; None if `running` is set.
        running: whether to ask the running cluster; if false, ask a temporary cluster.
        labels: the names of fields of the questions (option --by). For each value of such a field, the report also has
            the figures of the questions with this value.
        fit_into: the folder of the reader whose manifest gets the fitted calibration, the function that converts the
            scores of spans to probabilities; None: fit nothing.
    """

    file: Path
    questions: Sequence[PlainQuestion]
    documents: Path | None
    settings: Settings
    reader: ReaderFiles
    running: bool
    collection: str
    retriever_k: int
    seed: int
    labels: Sequence[str]
    fit_into: Path | None = None

    def __post_init__(self) -> None:
        """Raise InvalidInput for a label that no question has."""
        for label in self.labels:
            if not any(label in question.labels for question in self.questions):
                raise InvalidInput(
                    f"--by {label}: no question in {self.file} has the field {label!r} with a text; choose a"
                    " different field"
                )


def measure_plain_questions(plan: PlainQuestionPlan) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ask all questions. Return the report, and the rows of all answers under the name "plain"."""
    with _cluster(plan) as settings:
        reader, documents = default_reader(settings).name, _documents(settings, plan.collection)
        missing = _missing_documents(settings, plan)
        texts = [question.question for question in plan.questions]
        with console.progress("asking", len(texts)) as advance:
            results = ask_all(
                settings,
                texts,
                collection=plan.collection,
                waves=True,
                retriever_k=plan.retriever_k,
                top_k=FIRST if plan.fit_into is None else min(MAX_FITTED, plan.settings.top_k_max),
                advance=advance,
            )
    report_refused(texts, results)
    given = [_given(result) for result in results]
    report = {
        "qa_cluster": __version__,
        "file": plan.file.name,
        "documents": documents,
        "missing_documents": missing,
        "reader": reader,
        "retriever_k": plan.retriever_k,
        "intervals": {"level": LEVEL, "samples": SAMPLES, "seed": plan.seed},
        "plain": {
            "figures": asdict(plain_figures(plan.questions, given, seed=plan.seed)),
            "cost": costs(given, seed=plan.seed),
            "by": {
                label: {
                    value: asdict(found)
                    for value, found in by_label(plan.questions, given, label, seed=plan.seed).items()
                }
                for label in plan.labels
            },
        },
    }
    if plan.fit_into is not None:
        report["fit"] = _fit(plan, plan.fit_into, given)
    return report, {"plain": plain_rows(plan.questions, given)}


def _fit(plan: PlainQuestionPlan, folder: Path, given: Sequence[GivenAnswers]) -> dict[str, Any]:
    """Fit the calibration and the no-answer threshold of a reader to the judged answers, and write them to the manifest
    in `folder`. Return the part of the report about the fit. Raises InvalidInput if the manifest cannot be written.
    """
    path = folder / MANIFEST_FILE
    manifest = Manifest.load(path)
    found = fit_choice(judged(plan.questions, given, manifest.calibration))
    fitted = replace(
        manifest,
        calibration=found.calibration,
        calibration_error=found.error,
        no_answer_threshold=found.no_answer_threshold,
    )
    unfinished = path.with_name(f".{path.name}.new")
    try:
        unfinished.write_text(fitted.to_json(), encoding="utf-8")
        os.replace(unfinished, path)
    except OSError as error:
        raise InvalidInput(f"cannot write {str(path)!r}: {error.strerror}") from error
    return {"manifest": str(path), "before": asdict(manifest.calibration), **asdict(found)}


@contextmanager
def _cluster(plan: PlainQuestionPlan) -> Iterator[Settings]:
    if plan.running:
        settings = replace(plan.settings, cluster_url=cluster_url(plan.settings))
        yield settings
        return
    assert plan.documents is not None
    skipped: list[RequestError] = []
    with temporary_cluster(plan.settings, plan.reader) as settings, Extractor() as extractor:
        found = read_from(
            [plan.documents],
            on_error="skip",
            observer=ErrorObserver(skipped.append),
            max_bytes=settings.body_max_bytes,
            extractor=extractor,
            reading=FolderReading(FolderRules()),
        )
        documents = ((str(path), document) for path, document in found)
        store(settings, documents, on_refused=lambda document, error: skipped.append(error))
        if skipped:
            console.notice(f"{console.counted(len(skipped), 'document')} skipped, the first: {skipped[0]}")
        make_vectors(settings)
        yield settings


def _documents(settings: Settings, collection: str) -> int:
    with ClusterClient(settings) as client:
        return client.count_documents(collection=collection).documents


def _missing_documents(settings: Settings, plan: PlainQuestionPlan) -> int:
    """Return the number of documents that questions name and the cluster lacks.

    If a question names a missing document, no answer to it can be right.
    """
    named = {question.document for question in plan.questions if question.document}
    if not named:
        return 0
    with ClusterClient(settings) as client:
        stored = {entry.id for entry in client.list_documents(collection=plan.collection)}
    ends = {part for name in stored for part in _ends(name)}
    missing = sorted(named - ends)
    if missing:
        console.notice(
            f"the cluster lacks {console.counted(len(missing), 'document')} that questions name; the first is"
            f" {missing[0]!r}"
        )
    return len(missing)


def _ends(name: str) -> Iterator[str]:
    """Yield the names by which a question can refer to a document: its id `name`, and the rest of the id after each `/`
    and `:`.
    """
    yield name
    yield from (name[index + 1 :] for index, letter in enumerate(name) if letter in "/:")


def _given(result: AskResult | RequestError) -> GivenAnswers:
    if isinstance(result, RequestError):
        return GivenAnswers((), answerable=False)
    spans = tuple(
        GivenSpan(answer.answer, answer.score, answer.document_id, tuple(other.document_id for other in answer.also_in))
        for answer in result.answers
    )
    usage, timings = result.usage, result.timings_ms
    return GivenAnswers(spans, result.answerable, usage.sentences_read, timings.total, result.no_answer_score)
