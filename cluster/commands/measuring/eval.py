"""`qa-cluster eval`: measures the quality of the reader, of the ranking and of the whole system."""

from __future__ import annotations

import json as json_module
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from qa_cluster.errors import InvalidInput
from qa_cluster.evaluation.examples import spread
from qa_cluster.evaluation.plain_questions import holds_plain_questions, load_plain_questions
from qa_cluster.evaluation.question_set import load_question_set
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.reading.bundled import bundled_reader

from ...evaluation import report_tables
from ...evaluation.measuring import EvaluationPlan, measure
from ...evaluation.plain_questions import PlainQuestionPlan, measure_plain_questions
from ...readers.reader_files import budget_of, read_reader
from ...servers.signals import until_signal
from ...terminal import console
from ..shared_options import CollectionOption, Json, load_settings

MAX_K = 64


QuestionFile = Annotated[
    Path, typer.Argument(help="Question set: .json in SQuAD format, or .jsonl(.gz).", exists=True, dir_okay=False)
]
Documents = Annotated[
    Path | None,
    typer.Option(help="Folder or file with the documents for plain questions.", exists=True),
]
By = Annotated[
    list[str] | None,
    typer.Option(
        help="Also show the figures for each value of this field of plain questions, such as kind; repeatable."
    ),
]
Fit = Annotated[
    bool,
    typer.Option(
        "--fit",
        help="Fit the scores and the no-answer threshold to the plain questions, and write them to the manifest in"
        " --reader.",
    ),
]
ReaderFolder = Annotated[
    Path | None,
    typer.Option(help="Folder of the reader.", exists=True, file_okay=False, show_default="setting 'reader'"),
]
WithReader = Annotated[bool, typer.Option("--context/--no-context", help="Measure the reader on the given contexts.")]
WithRanking = Annotated[bool, typer.Option("--ranking/--no-ranking", help="Measure the recall of the ranking.")]
WithSystem = Annotated[bool, typer.Option("--system/--no-system", help="Measure the answers of the whole system.")]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        help="Compare with this checkpoint. Plain PyTorch runs it on the best sentences of BM25 (extra: bench).",
        exists=True,
        file_okay=False,
    ),
]
Running = Annotated[bool, typer.Option("--running", help="Ask the running cluster. Ingest the file into it first.")]
RetrieverK = Annotated[
    int | None,
    typer.Option(
        help="Maximum number of sentences read for a question.", min=1, max=MAX_K, show_default="setting 'retriever_k'"
    ),
]
ContextTokens = Annotated[
    int | None,
    typer.Option(
        help="Maximum tokens of a sentence with its neighbours; with 0, each sentence is read alone.",
        min=0,
        show_default="the reader's manifest",
    ),
]
Limit = Annotated[
    int | None, typer.Option(help="Number of questions to ask, spread over the file.", min=1, show_default="all")
]
Seed = Annotated[int, typer.Option(help="Random seed of the confidence intervals.", min=0)]
Out = Annotated[
    Path | None, typer.Option(help="Write the report with all answers to this file, as JSON.", dir_okay=False)
]


_Measuring = Callable[[], tuple[dict[str, Any], dict[str, Any]]]


def evaluate(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    file: QuestionFile,
    reader: ReaderFolder = None,
    given: WithReader = True,
    ranking: WithRanking = True,
    system: WithSystem = True,
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
    """Measure the quality of the reader, of the ranking and of the whole system on a question set.

    The command measures three parts. The reader gets each question with its context; the figures are exact match and
    F1. The ranking gets all contexts as documents; the figure is how often a sentence with the answer is among the
    first 1, 5, 8 and 20. The whole system gets the same documents; the figures are exact match and F1. The command asks
    the system each question twice: first, the reader reads all --retriever-k best sentences; then it reads in
    waves, and can stop after each wave. Ranking and system run on a temporary cluster. With --running or --cluster-url,
    they run on a cluster into which you have ingested the file. All intervals are 95 % bootstrap intervals over
    questions. `docs/evaluation.md` defines all figures.

    A .jsonl file can also contain plain questions, which have no contexts. Each line is {"question": "..", "answers":
    ["..", ..]} or {"question": "..", "pattern": ".."}; an empty list of answers means that the documents contain no
    answer. The command asks a temporary cluster with the documents in --documents or, with --running, the running
    cluster. It counts how often the first answer is right, how often one of the first three answers is right, and how
    often a wrong answer has a score above 0.5. With --fit, it then fits the scores to these questions and writes the
    manifest in --reader. Load the reader again with `qa-cluster model load`.

    Examples:

        qa-cluster eval questions.json

        qa-cluster eval questions.json --no-context --checkpoint my-checkpoint --out figures.json

        qa-cluster eval questions.json --no-context --limit 100 --json | jq '.system.runs[].f1'

        qa-cluster eval plain.jsonl --documents manuals/ --by kind

        qa-cluster eval plain.jsonl --documents manuals/ --reader my-reader --fit
    """
    parts = {"given": given, "ranking": ranking, "system": system}
    if not any(parts.values()):
        raise typer.BadParameter(
            "--no-context, --no-ranking and --no-system leave nothing to measure: omit one of them"
        )
    settings = load_settings(context).settings
    running = running or bool(settings.cluster_url)
    if not running and collection != DEFAULT_COLLECTION:
        raise typer.BadParameter(
            "the temporary cluster has no collections: add --running to ask the running cluster",
            param_hint="--collection",
        )
    folder = reader or (Path(settings.reader) if settings.reader else bundled_reader())
    plain = holds_plain_questions(file)
    if plain:
        _check_plain(file, parts, checkpoint, documents, running=running)
    else:
        _check_labelled(documents, by, fit=fit)
    if fit and (running or reader is None):
        raise typer.BadParameter(
            "--fit writes the manifest in --reader and measures on a temporary cluster: add --reader, and leave out"
            " --running and --cluster-url",
            param_hint="--fit",
        )
    if running:
        _check_running(file, context_tokens, plain=plain)
    # the options that plain questions and questions with contexts have in common
    common = {
        "file": file,
        "settings": settings,
        "reader": read_reader(folder, budget_of(settings) if context_tokens is None else context_tokens),
        "running": running,
        "collection": collection,
        "retriever_k": retriever_k or settings.retriever_k,
        "seed": seed,
    }
    _check_writable(out)
    if plain:
        measuring = _plain_questions(common, limit, documents, by or [], reader if fit else None)
    else:
        measuring = _questions_with_contexts(common, limit, folder, checkpoint, parts)
    _report(measuring, json=json, out=out)


def _plain_questions(
    common: dict[str, Any], limit: int | None, documents: Path | None, by: list[str], fit_into: Path | None
) -> _Measuring:
    questions = load_plain_questions(common["file"])
    plan = PlainQuestionPlan(
        **common,
        questions=spread(questions, limit) if limit is not None else questions,
        documents=documents,
        labels=by,
        fit_into=fit_into,
    )
    return lambda: measure_plain_questions(plan)


def _questions_with_contexts(
    common: dict[str, Any], limit: int | None, folder: Path, checkpoint: Path | None, parts: dict[str, bool]
) -> _Measuring:
    plan = EvaluationPlan(
        **common,
        questions=load_question_set(common["file"], limit=limit, max_bytes=common["settings"].body_max_bytes),
        folder=folder,
        checkpoint=checkpoint,
        limit=limit,
    )
    if parts["ranking"] and not any(plan.questions.gold):
        raise InvalidInput(
            f"{plan.file}: no question has its answer in its context, so recall cannot be measured: add --no-ranking"
        )
    return lambda: measure(plan, **parts)


def _check_plain(
    file: Path, parts: dict[str, bool], checkpoint: Path | None, documents: Path | None, *, running: bool
) -> None:
    """Refuse options that do not apply to plain questions, and require documents or a running cluster."""
    if not all(parts.values()) or checkpoint is not None:
        raise typer.BadParameter(
            f"{file} has plain questions, for which only the whole system is measured: leave out --no-context,"
            " --no-ranking, --no-system and --checkpoint"
        )
    if (documents is None) != running:
        raise typer.BadParameter(
            f"{file} has plain questions: give their documents with --documents, or ask the running cluster with"
            " --running or --cluster-url, but not both"
        )


def _check_labelled(documents: Path | None, by: list[str] | None, *, fit: bool) -> None:
    """Refuse options that apply only to plain questions."""
    for option, value in (("--documents", documents), ("--by", by), ("--fit", fit)):
        if value:
            raise typer.BadParameter(
                "this option is only for files of plain questions, without contexts", param_hint=option
            )


def _check_running(file: Path, context_tokens: int | None, *, plain: bool) -> None:
    """Refuse a file that cannot be ingested into a running cluster, and the option --context-tokens, which has no
    effect on a running cluster.
    """
    if file.suffix.lower() != ".json" and not plain:
        raise typer.BadParameter(
            f"{file}: the contexts of a .jsonl file cannot be ingested into a running cluster: leave out --running and"
            " --cluster-url, or use a .json file in SQuAD format"
        )
    if context_tokens is not None:
        raise typer.BadParameter(
            f"{context_tokens} has no effect on a running cluster, whose reader is already loaded: leave it out",
            param_hint="--context-tokens",
        )


def _check_writable(out: Path | None) -> None:
    """Refuse an output file that cannot be written, before the measuring starts, which takes minutes."""
    if out is not None and not (out.parent.is_dir() and os.access(out if out.exists() else out.parent, os.W_OK)):
        raise typer.BadParameter(
            f"{str(out)!r} cannot be written: choose a file in an existing, writable folder", param_hint="--out"
        )


def _report(measuring: _Measuring, *, json: bool, out: Path | None) -> None:
    """Call `measuring`, print the report, and write the report with all answers to the file `out`, unless it is None.
    `measuring` returns the report and the answers.
    """
    with until_signal():
        report, answers = measuring()
    if out is not None:
        out.write_text(json_module.dumps({**report, "answers": answers}, indent=1, ensure_ascii=False), "utf-8")
    if json:
        console.say_json(report)
    else:
        report_tables.show(report)
