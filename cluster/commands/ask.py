"""`qa-cluster ask`: answers a question on the terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from qa_cluster.asking.questions import AskLimits, AskOptions, check_question
from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.config import PARTIAL, Settings
from qa_cluster.errors import RequestError
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.types import Answer, AskResult, Hit, Index

from ..servers.local import with_cluster
from ..terminal import console, tables
from .shared_options import CollectionOption, CoverageOption, FilterOption, load_settings


def ask(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    question: Annotated[str, typer.Argument(help="The question.")],
    top_k: Annotated[int, typer.Option(help="How many answers at most.", min=1)] = 3,
    model: Annotated[
        str, typer.Option(help="Which loaded model reads, an id or id@revision.", show_default="the default one")
    ] = "",
    filter: FilterOption = None,
    collection: CollectionOption = DEFAULT_COLLECTION,
    coverage: CoverageOption = PARTIAL,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, as the REST service answers.")] = False,
) -> None:
    """Ask the cluster a question. The exit code is 0 also when the documents hold no answer.

    While a shard is down, the others answer, and a notice says so; with --coverage full the exit code is then 3.

    Examples:

        qa-cluster ask "When is a finally clause executed?" --json | jq -r '.answers[0].answer'

        qa-cluster ask "When is a finally clause executed?" --model my-reader

        qa-cluster ask "When is a finally clause executed?" --filter lang=en --filter "year>=2020"
    """
    settings = load_settings(context).settings
    options = AskOptions(top_k=top_k, filter=tuple(filter or ()), model=model, collection=collection, coverage=coverage)
    _check(settings, question, options)
    settings = with_cluster(settings)
    with ClusterClient(settings) as client:
        result = client.ask(question, top_k=top_k, filter=filter, model=model, collection=collection, coverage=coverage)
    if json:
        console.say_json(result.to_dict())
    else:
        show(result)


def _check(settings: Settings, question: str, options: AskOptions) -> None:
    """Raise BadParameter for what the cluster would refuse: it is wrong usage."""
    limits = AskLimits(question_max_chars=settings.question_max_chars, top_k_max=settings.top_k_max)
    try:
        check_question(question, options, limits)
    except RequestError as error:
        raise typer.BadParameter(str(error)) from error


def show(result: AskResult) -> None:
    """Print the answers, except those with a score of 0.00 that are not the best."""
    notice_partial(result.index)
    placed = any(where(answer) for answer in result.answers)
    if not result.answerable:
        console.say("no answer in the documents")
    tables.table(
        [
            {
                "answer": " ".join(answer.answer.split()),
                "score": f"{answer.score:.2f}",
                "document": answer.document_id + (f" and {len(answer.also_in)} more" if answer.also_in else ""),
                **({"where": where(answer)} if placed else {}),
                "sentence": " ".join(answer.context.split()),
            }
            for answer in result.answers
            if answer.rank == 1 or f"{answer.score:.2f}" != "0.00"
        ],
        right=("score",),
        minor=("where", "document"),
    )
    console.say(f"{result.timings_ms.total:.1f} ms, cache: {result.cache.tier}")


def notice_partial(index: Index) -> None:
    """Say which shards could not be asked, if any."""
    if index.partial:
        console.notice(
            f"part of the documents could not be asked: {len(index.missing)} of {index.shards_total} shards"
            f" ({', '.join(index.missing)}), see `qa-cluster status`"
        )


def where(found: Answer | Hit) -> str:
    """Section and place of what was found: ``OPTIONS > -f, line 120``; empty if neither is known."""
    place = ""
    if found.source is not None and found.source.line:
        place = f"line {found.source.line}"
    elif found.source is not None and found.source.page:
        place = f"page {found.source.page}"
    return ", ".join(filter(None, (" > ".join(found.section), place)))
