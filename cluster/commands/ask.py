"""`qa-cluster ask`: answers a question."""

from __future__ import annotations

from typing import Annotated

import typer

from qa_cluster.asking.questions import AskLimits, check_question
from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.options.questions import PARTIAL, AskOptions
from qa_cluster.ranking.meaning import BOTH
from qa_cluster.reading.plan import PLANS
from qa_cluster.types import Answer, AskResult, Hit, Index

from ..servers.local import with_cluster
from ..terminal import console, tables
from .shared_options import (
    CollectionOption,
    CoverageOption,
    FilterOption,
    JsonOfService,
    RetrieverOption,
    choice_option,
    load_settings,
    refusals_as_usage,
)


def ask(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    question: Annotated[str, typer.Argument(help="The question.")],
    top_k: Annotated[int, typer.Option(help="Maximum number of answers.", min=1)] = 3,
    model: Annotated[
        str,
        typer.Option(help="The loaded reader that answers: id or id@revision.", show_default="the default reader"),
    ] = "",
    filter: FilterOption = None,
    collection: CollectionOption = DEFAULT_COLLECTION,
    coverage: CoverageOption = PARTIAL,
    retriever: RetrieverOption = BOTH,
    plan: Annotated[
        str | None,
        choice_option(
            tuple(PLANS),
            "How many sentences the reader reads. fast: at most 6; balanced: at most 8; accurate: at most 12, and if"
            " its answer is not sure enough, a larger reader reads the best 4 again.",
            show_default="setting 'plan'",
        ),
    ] = None,
    json: JsonOfService = False,
) -> None:
    """Ask the cluster a question. The exit code is 0 even if the documents contain no answer.

    While a shard is down, the other shards answer, and the command prints a note. With --coverage full, the command
    instead fails with exit code 3.

    Examples:

        qa-cluster ask "When is a finally clause executed?" --json | jq -r '.answers[0].answer'

        qa-cluster ask "When is a finally clause executed?" --model my-reader

        qa-cluster ask "When is a finally clause executed?" --filter lang=en --filter "year>=2020"
    """
    settings = load_settings(context).settings
    options = AskOptions(
        top_k=top_k,
        filter=tuple(filter or ()),
        model=model,
        collection=collection,
        coverage=coverage,
        retriever=retriever,
        plan=plan or "",
    )
    limits = AskLimits(question_max_chars=settings.question_max_chars, top_k_max=settings.top_k_max)
    with refusals_as_usage():
        check_question(question, options, limits)
    with ClusterClient(with_cluster(settings)) as client:
        result = client.ask(
            question,
            top_k=top_k,
            filter=filter,
            model=model,
            collection=collection,
            coverage=coverage,
            retriever=retriever,
            plan=plan,
        )
    if json:
        console.say_json(result.to_dict())
    else:
        show(result)


def show(result: AskResult) -> None:
    """Print the best answer, and the other answers whose score, rounded to two digits, is above 0.00."""
    notice_partial(result.index)
    any_position = any(where(answer) for answer in result.answers)
    if not result.answerable:
        console.say("no answer in the documents")
    tables.table(
        [
            {
                "answer": " ".join(answer.answer.split()),
                "score": f"{answer.score:.2f}",
                "confidence": "pinned" if answer.pinned else answer.confidence,
                "document": answer.document_id + (f" and {len(answer.also_in)} more" if answer.also_in else ""),
                **({"where": where(answer)} if any_position else {}),
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
    """Print a note with the shards that did not answer, if any. `index` is the part of a result that names them."""
    if index.partial:
        console.notice(
            f"the result is partial: {len(index.missing)} of {index.shards_total} shards did not answer"
            f" ({', '.join(index.missing)}); run `qa-cluster status` to see why"
        )


def where(found: Answer | Hit) -> str:
    """Return the section, the line or page, and the address of an answer or hit: ``OPTIONS > -f, line 120``. Return an
    empty text if all are unknown.
    """
    position = ""
    if found.source is not None and found.source.line:
        position = f"line {found.source.line}"
    elif found.source is not None and found.source.page:
        position = f"page {found.source.page}"
    return ", ".join(filter(None, (" > ".join(found.section), position, found.url)))
