"""Asks plain questions of documents: on a cluster of its own that gets them, or on a running one that has them."""

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
from qa_cluster.errors import ConfigError, InvalidInput, RequestError
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
from qa_cluster.sources.limited import Extractor
from qa_cluster.types import AskResult

from ..provision.storing import store
from ..readers.reader_files import ReaderFiles
from ..servers.local import cluster_url
from ..terminal import console
from .asking import ask_all, note_refused
from .temporary_cluster import temporary_cluster

MOST_FITTED = 20
"""Answers of a question that a fit takes account of."""


@dataclass(frozen=True)
class PlainPlan:
    """The inputs and options of one evaluation with plain questions.

    Attributes:
        fit_into: the reader's folder, whose manifest gets the calibration that fits the answers; None: it stays.
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
                raise InvalidInput(f"--by {label}: no question of {self.file} has a text in the field {label!r}")


def measure_plain(plan: PlainPlan) -> tuple[dict[str, Any], dict[str, Any]]:
    """The report, and what every question got."""
    with _cluster(plan) as settings:
        reader, documents = _default_reader(settings), _documents(settings, plan.collection)
        missing = _missing_documents(settings, plan)
        texts = [question.question for question in plan.questions]
        with console.progress("asking", len(texts)) as advance:
            results = ask_all(
                settings,
                texts,
                collection=plan.collection,
                waves=True,
                retriever_k=plan.retriever_k,
                top_k=FIRST if plan.fit_into is None else min(MOST_FITTED, plan.settings.top_k_max),
                advance=advance,
            )
    note_refused(texts, results)
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


def _fit(plan: PlainPlan, folder: Path, given: Sequence[GivenAnswers]) -> dict[str, Any]:
    """Fit the manifest in a reader's folder to what the reader's answers were worth, and write it."""
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
def _cluster(plan: PlainPlan) -> Iterator[Settings]:
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
            on_skip=skipped.append,
            max_bytes=settings.body_max_bytes,
            extractor=extractor,
        )
        documents = ((str(path), document) for path, document in found)
        store(settings, documents, on_refused=lambda document, error: skipped.append(error))
        if skipped:
            console.notice(f"{console.counted(len(skipped), 'document')} skipped, the first: {skipped[0]}")
        yield settings


def _default_reader(settings: Settings) -> str:
    """The name of the reader that answers; it must be there before the first question."""
    with ClusterClient(settings) as client:
        default = next((model for model in client.models() if model.default), None)
    if default is None:
        raise ConfigError("the cluster has no reader: give it one with `qa-cluster model load`")
    return default.name


def _documents(settings: Settings, collection: str) -> int:
    with ClusterClient(settings) as client:
        return client.count_documents(collection=collection).documents


def _missing_documents(settings: Settings, plan: PlainPlan) -> int:
    """How many of the documents that questions name are not there; their questions cannot be answered rightly."""
    named = {question.document for question in plan.questions if question.document}
    if not named:
        return 0
    with ClusterClient(settings) as client:
        stored = {entry.id for entry in client.list_documents(collection=plan.collection)}
    ends = {part for name in stored for part in _ends(name)}
    missing = sorted(named - ends)
    if missing:
        console.notice(
            f"{console.counted(len(missing), 'document that questions name is', 'documents that questions name are')}"
            f" not in the cluster, the first is {missing[0]!r}"
        )
    return len(missing)


def _ends(name: str) -> Iterator[str]:
    """The id and what stands in it after each `/` and `:`."""
    yield name
    yield from (name[place + 1 :] for place, letter in enumerate(name) if letter in "/:")


def _given(result: AskResult | RequestError) -> GivenAnswers:
    if isinstance(result, RequestError):
        return GivenAnswers((), answerable=False)
    spans = tuple(
        GivenSpan(answer.answer, answer.score, answer.document_id, tuple(place.document_id for place in answer.also_in))
        for answer in result.answers
    )
    usage, timings = result.usage, result.timings_ms
    return GivenAnswers(spans, result.answerable, usage.sentences_read, timings.total, result.no_answer_score)
