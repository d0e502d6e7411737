"""`qa-cluster eval`: how good the answers are, of the reader, of the ranking and of the whole system."""

from __future__ import annotations

import json as json_module
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from qa_cluster import __version__
from qa_cluster.cluster_client import ClusterClient
from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError, InvalidInput, RequestError
from qa_cluster.evaluation.figures import Told, recall, recall_by_type, recall_difference
from qa_cluster.evaluation.intervals import LEVEL, SAMPLES
from qa_cluster.evaluation.question_set import QuestionSet, load_question_set
from qa_cluster.reading.tokenization import ReaderTokenizer

from ..provision.provisioning import provision
from ..readers.reader_files import ReaderFiles, budget_of, default_reader_folder, read_reader
from ..servers.local import LocalCluster
from ..servers.signals import ignore_signals, until_signal
from . import console, eval_tables, model_program
from .cluster import start_servers
from .corpus import store
from .evaluating import Places, Run, ask_all, differences, need_documents, rank_all, told_by
from .session import Session, cluster_url

MAX_K = 64


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("eval")(evaluate)


@dataclass(frozen=True)
class Plan:
    """What one evaluation does."""

    file: Path
    questions: QuestionSet
    settings: Settings
    folder: Path
    reader: ReaderFiles
    checkpoint: Path | None
    running: bool
    retriever_k: int
    limit: int | None
    seed: int

    @property
    def program_options(self) -> list[str]:
        """What the programs of models are told, so that they take the same questions and use no more cores."""
        threads = self.settings.worker_threads or os.cpu_count() or 1
        limit = [] if self.limit is None else ["--limit", str(self.limit)]
        return [*limit, "--threads", str(threads)]


def evaluate(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(help="Question set: SQuAD-format .json, or .jsonl(.gz).", exists=True, dir_okay=False)
    ],
    reader: Annotated[
        Path | None,
        typer.Option(help="Folder of the reader.", exists=True, file_okay=False, show_default="setting 'reader'"),
    ] = None,
    given: Annotated[
        bool, typer.Option("--context/--no-context", help="Measure the reader, the context given.")
    ] = True,
    ranking: Annotated[bool, typer.Option("--ranking/--no-ranking", help="Measure recall of the ranking.")] = True,
    system: Annotated[bool, typer.Option("--system/--no-system", help="Measure the answers of the whole.")] = True,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Compare with plain PyTorch reading of BM25's best sentences by this checkpoint (extra: bench).",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    running: Annotated[
        bool, typer.Option("--running", help="Ask the cluster that runs; it must hold the contexts.")
    ] = False,
    retriever_k: Annotated[
        int | None, typer.Option(help="Sentences read of a question at most.", min=1, max=MAX_K, show_default="8")
    ] = None,
    context_tokens: Annotated[
        int | None,
        typer.Option(
            help="Budget, in tokens, of a sentence with its neighbours; 0: each sentence alone.",
            min=0,
            show_default="the manifest's",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only so many questions, spread over the file.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Of the confidence intervals.", min=0)] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write JSON with every question's answers to this file.", dir_okay=False)
    ] = None,
) -> None:
    """How good the answers to a question set are: of the reader, of the ranking, and of the whole system.

    The reader is measured with each question's context given: exact match and F1. Then all contexts become the corpus
    of a cluster that is started for it and ends with the command: how often a sentence that answers is among the first
    1, 5, 8 and 20, and exact match and F1 of the answers, read in waves and reading all candidates. With --running, or
    --cluster-url, a cluster is asked into which the file has been ingested. Intervals are 95 % bootstrap intervals over
    questions; `docs/evaluation.md` says how everything is counted.

    Examples:

        qa-cluster eval questions.json

        qa-cluster eval questions.json --no-context --checkpoint my-checkpoint --out figures.json

        qa-cluster eval questions.json --no-context --limit 100 --json | jq '.system.runs[].f1'
    """
    if not (given or ranking or system):
        raise typer.BadParameter("all three parts are switched off: there is nothing to measure")
    session: Session = context.obj
    settings = session.load().settings
    _need_place(out)
    running = running or bool(settings.cluster_url)
    if running and file.suffix.lower() != ".json":
        raise typer.BadParameter(
            f"{file}: the contexts of JSON lines cannot be ingested, so no running cluster has them"
        )
    if running and context_tokens is not None:
        raise typer.BadParameter("a running cluster reads as its reader was loaded", param_hint="--context-tokens")
    folder = reader or (Path(settings.reader) if settings.reader else default_reader_folder())
    plan = Plan(
        file=file,
        questions=load_question_set(file, limit=limit, max_bytes=settings.body_max_bytes),
        settings=settings,
        folder=folder,
        reader=read_reader(folder, budget_of(settings) if context_tokens is None else context_tokens),
        checkpoint=checkpoint,
        running=running,
        retriever_k=retriever_k or settings.retriever_k,
        limit=limit,
        seed=seed,
    )
    if ranking and not any(plan.questions.gold):
        raise InvalidInput(
            f"{file}: no question's answer stands in its context, so there is no recall: leave it out with --no-ranking"
        )
    with until_signal():
        report, answers = _measure(plan, given=given, ranking=ranking, system=system)
    if out is not None:
        out.write_text(json_module.dumps({**report, "answers": answers}, indent=1, ensure_ascii=False), "utf-8")
    if json:
        console.say_json(report)
    else:
        eval_tables.show(report)


def _measure(plan: Plan, *, given: bool, ranking: bool, system: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The report, and what every way of answering told of every question."""
    answers: dict[str, Any] = {}
    report = _head(plan)
    reference = _reference(plan) if plan.checkpoint is not None and (ranking or system) else None
    if ranking or system:
        report |= _on_a_cluster(plan, ranking=ranking, system=system, reference=reference, answers=answers)
    if given:
        report["context_given"] = _context_given(plan, answers)
    return report, answers


def _need_place(out: Path | None) -> None:
    """Refuse, before minutes of work, a file that cannot be written."""
    if out is not None and not (out.parent.is_dir() and os.access(out if out.exists() else out.parent, os.W_OK)):
        raise typer.BadParameter(f"{str(out)!r} cannot be written", param_hint="--out")


def _head(plan: Plan) -> dict[str, Any]:
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


def _questions_cut(plan: Plan) -> int:
    """How many questions are longer than what the reader takes of them."""
    tokenizer, longest = ReaderTokenizer(plan.reader.tokenizer), plan.reader.manifest.max_question_tokens
    cut = sum(tokenizer.encode_question(example.question, longest).truncated for example in plan.questions.examples)
    if cut:
        are = console.counted(cut, "question has", "questions have")
        console.notice(f"{are} more than {longest} tokens: what is beyond them is not read")
    return cut


def _context_given(plan: Plan, answers: dict[str, Any]) -> dict[str, Any]:
    arguments = [str(plan.folder), str(plan.file), "--seed", str(plan.seed), "--answers", *plan.program_options]
    console.step("reading with the context given")
    found = model_program.run("evaluate", *arguments)
    answers["context given"] = found.pop("answers")
    return found


def _reference(plan: Plan) -> dict[str, Any]:
    console.step("reading BM25's best sentences with PyTorch")
    arguments = [str(plan.checkpoint), str(plan.file), "--k", str(plan.retriever_k), *plan.program_options]
    return model_program.run("reference", *arguments)


def _on_a_cluster(
    plan: Plan, *, ranking: bool, system: bool, reference: dict[str, Any] | None, answers: dict[str, Any]
) -> dict[str, Any]:
    with _cluster(plan) as (settings, context_tokens):
        report: dict[str, Any] = {"context_tokens": context_tokens}
        if ranking:
            with console.progress("ranking", len(plan.questions.examples)) as advance:
                places = rank_all(settings, settings.cluster_url, plan.questions, advance)
            report["ranking"] = _ranking(plan, places, reference)
        if system:
            report["system"] = _system(plan, settings, reference, answers)
    return report


@contextmanager
def _cluster(plan: Plan) -> Iterator[tuple[Settings, int]]:
    """The settings with the address of the running cluster, or of one of our own that ends here, contexts and all.

    With them the budget of a sentence with its neighbours there.
    """
    if plan.running:
        settings = replace(plan.settings, cluster_url=cluster_url(plan.settings))
        context_tokens = _need_reader(settings, plan)
        with console.progress("comparing documents", len(plan.questions.documents)) as advance:
            need_documents(settings, plan.questions, str(plan.file), advance)
        yield settings, context_tokens
        return
    with until_signal(), tempfile.TemporaryDirectory(prefix="qa-eval-", ignore_cleanup_errors=True) as folder:
        settings = replace(plan.settings, data_dir=Path(folder), cluster_url="", replicas=0, first_port=0)
        try:
            url = start_servers(settings, tethered=True)
            provision(settings, url, plan.reader, console.step)
            settings = replace(settings, cluster_url=url)
            store(settings, plan.questions.documents)
            yield settings, plan.reader.manifest.context_tokens
        finally:
            ignore_signals()
            LocalCluster(settings).down()


def _need_reader(settings: Settings, plan: Plan) -> int:
    """Refuse to take the figures of one reader for those of another; returns the budget the cluster reads with."""
    manifest = plan.reader.manifest
    with ClusterClient(settings) as client:
        default = next((model for model in client.models() if model.default), None)
    if default is None:
        raise ConfigError("the cluster has no reader: give it one with `qa-cluster model load`")
    if default.revision != manifest.revision:
        raise ConfigError(
            f"the cluster reads with {default.name}, and the reader in {str(plan.folder)!r}"
            f" is {manifest.name}: name the folder of the cluster's reader with --reader"
        )
    return default.context_tokens


def _ranking(plan: Plan, found: Places, reference: dict[str, Any] | None) -> dict[str, Any]:
    """Recall over the questions whose answer is found in a sentence."""
    known = [number for number, gold in enumerate(plan.questions.gold) if gold]
    examples = [plan.questions.examples[number] for number in known]
    places = [found.places[number] for number in known]
    report: dict[str, Any] = {
        "sentences": found.sentences,
        **asdict(recall(places, seed=plan.seed)),
        "by_type": {name: asdict(part) for name, part in recall_by_type(examples, places, seed=plan.seed).items()},
    }
    if reference is not None:
        theirs = [reference["places"][number] for number in known]
        minus = recall_difference(places, theirs, seed=plan.seed)
        report["reference"] = asdict(recall(theirs, seed=plan.seed))
        report["difference"] = {depth: asdict(interval) for depth, interval in minus.items()}
    return report


def _system(
    plan: Plan, settings: Settings, reference: dict[str, Any] | None, answers: dict[str, Any]
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


def _ask(plan: Plan, settings: Settings, *, waves: bool) -> Run:
    name = "in waves" if waves else f"all {plan.retriever_k}"
    with console.progress(f"asking, {name}", len(plan.questions.examples)) as advance:
        results = ask_all(settings, plan.questions, waves=waves, retriever_k=plan.retriever_k, advance=advance)
    _tell_refused(plan, results)
    read = [0 if isinstance(result, RequestError) else result.usage.sentences_read for result in results]
    return Run.of(name, plan.questions, told_by(results), read)


def _tell_refused(plan: Plan, results: Sequence[object]) -> None:
    refused = [(number, error) for number, error in enumerate(results) if isinstance(error, RequestError)]
    if refused:
        number, error = refused[0]
        console.notice(
            f"{console.counted(len(refused), 'question is', 'questions are')} refused and count as not answered; the"
            f" first is question {number + 1}, {plan.questions.examples[number].question[:80]!r}: {error}"
        )


def _reference_runs(plan: Plan, reference: dict[str, Any]) -> list[Run]:
    read = [min(plan.retriever_k, reference["sentences"])] * len(plan.questions.examples)
    names = {"plain": "PyTorch on BM25", "ranked": f"the same + {reference['rank_weight']:g} × BM25"}
    return [
        Run.of(name, plan.questions, [Told(text, score > 0) for text, score in reference[key]], read)
        for key, name in names.items()
    ]
