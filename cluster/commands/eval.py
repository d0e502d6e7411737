"""`qa-cluster eval`: measures the quality of the reader, of the ranking and of the whole system."""

from __future__ import annotations

import json as json_module
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict, Unpack

import typer

from qa_cluster.config import Settings
from qa_cluster.errors import InvalidInput
from qa_cluster.evaluation.examples import spread
from qa_cluster.evaluation.plain_questions import holds_plain_questions, load_plain_questions
from qa_cluster.evaluation.question_set import load_question_set
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.reading.bundled import bundled_reader

from ..evaluation import report_tables
from ..evaluation.measuring import EvaluationPlan, measure
from ..evaluation.plain import PlainPlan, measure_plain
from ..readers.reader_files import ReaderFiles, budget_of, read_reader
from ..servers.signals import until_signal
from ..terminal import console
from .shared_options import CollectionOption, Json, load_settings

MAX_K = 64


QuestionFile = Annotated[
    Path, typer.Argument(help="Question set: SQuAD-format .json, or .jsonl(.gz).", exists=True, dir_okay=False)
]
Documents = Annotated[
    Path | None,
    typer.Option(help="Folder or file with the documents that plain questions are asked of.", exists=True),
]
By = Annotated[
    list[str] | None,
    typer.Option(help="Field of plain questions by which to tell figures apart, such as kind; may be repeated."),
]
Fit = Annotated[
    bool,
    typer.Option(
        "--fit", help="Fit scores and the no-answer threshold to the plain questions, and write the reader's manifest."
    ),
]
ReaderFolder = Annotated[
    Path | None,
    typer.Option(help="Folder of the reader.", exists=True, file_okay=False, show_default="setting 'reader'"),
]
Given = Annotated[bool, typer.Option("--context/--no-context", help="Measure the reader, with the context given.")]
OfRanking = Annotated[bool, typer.Option("--ranking/--no-ranking", help="Measure recall of the ranking.")]
OfSystem = Annotated[bool, typer.Option("--system/--no-system", help="Measure the answers of the whole system.")]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        help="Compare with plain PyTorch reading of BM25's best sentences by this checkpoint (extra: bench).",
        exists=True,
        file_okay=False,
    ),
]
Running = Annotated[bool, typer.Option("--running", help="Ask the running cluster; it must hold the contexts.")]
RetrieverK = Annotated[
    int | None, typer.Option(help="Most sentences read for a question.", min=1, max=MAX_K, show_default="8")
]
ContextTokens = Annotated[
    int | None,
    typer.Option(
        help="Budget, in tokens, of a sentence with its neighbours; 0: each sentence alone.",
        min=0,
        show_default="the manifest's",
    ),
]
Limit = Annotated[
    int | None, typer.Option(help="How many questions to ask, spread over the file.", min=1, show_default="all")
]
Seed = Annotated[int, typer.Option(help="Random seed of the confidence intervals.", min=0)]
Out = Annotated[
    Path | None, typer.Option(help="Write JSON with every question's answers to this file.", dir_okay=False)
]


class _Parts(TypedDict):
    """The parts that are measured."""

    given: bool
    ranking: bool
    system: bool


class _Shared(TypedDict):
    """What both kinds of plans have."""

    file: Path
    settings: Settings
    reader: ReaderFiles
    running: bool
    collection: str
    retriever_k: int
    seed: int


_Measured = Callable[[], tuple[dict[str, Any], dict[str, Any]]]


def evaluate(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    file: QuestionFile,
    reader: ReaderFolder = None,
    given: Given = True,
    ranking: OfRanking = True,
    system: OfSystem = True,
    checkpoint: Checkpoint = None,
    running: Running = False,
    collection: CollectionOption = DEFAULT_COLLECTION,
    retriever_k: RetrieverK = None,
    context_tokens: ContextTokens = None,
    limit: Limit = None,
    seed: Seed = 0,
    json: Json = False,
    out: Out = None,
    documents: Documents = None,
    by: By = None,
    fit: Fit = False,
) -> None:
    """Measure how good the answers to a question set are: of the reader, of the ranking, and of the whole system.

    The reader is measured with each question's context given: exact match and F1. Then all contexts become the corpus
    of a cluster that starts and ends with the command. There it measures how often a sentence that answers is among the
    first 1, 5, 8 and 20, and exact match and F1 of the answers, read in waves and reading all candidates. With
    --running or --cluster-url it asks a cluster into which the file has been ingested. Intervals are 95 % bootstrap
    intervals over questions; `docs/evaluation.md` says how everything is counted.

    A .jsonl file may also hold plain questions, {"question": "..", "answers": ["..", ..]} or {"question": "..",
    "pattern": ".."} on every line; no answers mean that there is none. They are asked of the documents in --documents,
    or with --running of the running cluster: how often the first answer is right, how often one of the first three, how
    often a wrong one comes with a score above .5. With --fit the scores become those that fit these questions: the
    manifest in --reader is written anew, and `qa-cluster model load` brings it to a cluster.

    Examples:

        qa-cluster eval questions.json

        qa-cluster eval questions.json --no-context --checkpoint my-checkpoint --out figures.json

        qa-cluster eval questions.json --no-context --limit 100 --json | jq '.system.runs[].f1'

        qa-cluster eval plain.jsonl --documents manuals/ --by kind

        qa-cluster eval plain.jsonl --documents manuals/ --reader my-reader --fit
    """
    parts = _parts(given=given, ranking=ranking, system=system)
    settings = load_settings(context).settings
    running = running or bool(settings.cluster_url)
    if not running and collection != DEFAULT_COLLECTION:
        raise typer.BadParameter("only a running cluster has collections: add --running", param_hint="--collection")
    folder = reader or (Path(settings.reader) if settings.reader else bundled_reader())
    plain = holds_plain_questions(file)
    if plain:
        _check_plain(file, parts, checkpoint, documents, running=running)
    else:
        _check_labelled(documents, by, fit=fit)
    if fit and (running or reader is None):
        raise typer.BadParameter(
            "needs --reader, the folder whose manifest is to be written, and a cluster of its own: leave out --running"
            " and --cluster-url",
            param_hint="--fit",
        )
    if running:
        _need_ingestable(file, context_tokens, plain=plain)
    shared = _Shared(
        file=file,
        settings=settings,
        reader=read_reader(folder, budget_of(settings) if context_tokens is None else context_tokens),
        running=running,
        collection=collection,
        retriever_k=retriever_k or settings.retriever_k,
        seed=seed,
    )
    _need_place(out)
    if plain:
        measured = _of_plain(shared, limit, documents, by or [], reader if fit else None)
    else:
        measured = _of_labelled(shared, limit, folder, checkpoint, parts)
    _report(measured, json=json, out=out)


def _of_plain(
    shared: _Shared, limit: int | None, documents: Path | None, by: list[str], fit_into: Path | None
) -> _Measured:
    """The measuring of plain questions."""
    questions = load_plain_questions(shared["file"])
    plan = PlainPlan(
        **shared,
        questions=spread(questions, limit) if limit is not None else questions,
        documents=documents,
        labels=by,
        fit_into=fit_into,
    )
    return lambda: measure_plain(plan)


def _of_labelled(shared: _Shared, limit: int | None, folder: Path, checkpoint: Path | None, parts: _Parts) -> _Measured:
    """The measuring of questions with contexts."""
    plan = EvaluationPlan(
        **shared,
        questions=load_question_set(shared["file"], limit=limit, max_bytes=shared["settings"].body_max_bytes),
        folder=folder,
        checkpoint=checkpoint,
        limit=limit,
    )
    _need_gold(plan, parts)
    return lambda: measure(plan, **parts)


def _parts(**parts: Unpack[_Parts]) -> _Parts:
    if not any(parts.values()):
        raise typer.BadParameter("all three parts are switched off: there is nothing to measure")
    return parts


def _check_plain(file: Path, parts: _Parts, checkpoint: Path | None, documents: Path | None, *, running: bool) -> None:
    """Raise for options that plain questions cannot have, and without documents to ask them of."""
    if not all(parts.values()) or checkpoint is not None:
        raise typer.BadParameter(
            f"{file} holds plain questions, of which only the answers are measured: leave out --no-context,"
            " --no-ranking, --no-system and --checkpoint"
        )
    if (documents is None) != running:
        raise typer.BadParameter(
            f"{file} holds plain questions: name the documents they are asked of with --documents, or ask the running"
            " cluster with --running or --cluster-url; not both"
        )


def _check_labelled(documents: Path | None, by: list[str] | None, *, fit: bool) -> None:
    """Raise for options that only plain questions have."""
    for option, value in (("--documents", documents), ("--by", by), ("--fit", fit)):
        if value:
            raise typer.BadParameter("only for files of plain questions, without contexts", param_hint=option)


def _need_ingestable(file: Path, context_tokens: int | None, *, plain: bool) -> None:
    """Raise for what a running cluster cannot have: the contexts of JSON lines, or another context budget."""
    if file.suffix.lower() != ".json" and not plain:
        raise typer.BadParameter(
            f"{file}: the contexts of JSON lines cannot be ingested, so no running cluster has them"
        )
    if context_tokens is not None:
        raise typer.BadParameter("a running cluster reads as its reader was loaded", param_hint="--context-tokens")


def _need_place(out: Path | None) -> None:
    """Raise, before minutes of work, if the output file cannot be written."""
    if out is not None and not (out.parent.is_dir() and os.access(out if out.exists() else out.parent, os.W_OK)):
        raise typer.BadParameter(f"{str(out)!r} cannot be written", param_hint="--out")


def _need_gold(plan: EvaluationPlan, parts: _Parts) -> None:
    """Raise InvalidInput if recall is to be measured and no question has its answer in its context."""
    if parts["ranking"] and not any(plan.questions.gold):
        raise InvalidInput(
            f"{plan.file}: no question has its answer in its context, so recall cannot be measured: leave it out with"
            " --no-ranking"
        )


def _report(measured: _Measured, *, json: bool, out: Path | None) -> None:
    """Measure, print the report, and write it with all answers."""
    with until_signal():
        report, answers = measured()
    if out is not None:
        out.write_text(json_module.dumps({**report, "answers": answers}, indent=1, ensure_ascii=False), "utf-8")
    if json:
        console.say_json(report)
    else:
        report_tables.show(report)
