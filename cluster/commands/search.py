"""`qa-cluster search`: prints the sentences that match words best."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import typer

from qa_cluster.asking.questions import AskLimits, SearchOptions, check_search
from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.config import PARTIAL, Settings
from qa_cluster.errors import RequestError
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.reading.passages import MAX_NEIGHBOURS
from qa_cluster.shard_functions import MAX_RANK_COUNT
from qa_cluster.types import Hit, SearchResult

from ..servers.local import with_cluster
from ..terminal import console
from .ask import notice_partial, where
from .shared_options import CollectionOption, CoverageOption, FilterOption, load_settings

_SPACE = re.compile(r"\s")


def search(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    words: Annotated[str, typer.Argument(help="What to search for: words, or a question.")],
    top_k: Annotated[int, typer.Option(help="How many sentences at most.", min=1, max=MAX_RANK_COUNT)] = 10,
    doc_id: Annotated[
        list[str] | None,
        typer.Option(help="Only sentences of this document; can be repeated.", metavar="ID", show_default=False),
    ] = None,
    filter: FilterOption = None,
    collection: CollectionOption = DEFAULT_COLLECTION,
    around: Annotated[
        int,
        typer.Option("--context", help="Show this many sentences before and after each.", min=0, max=MAX_NEIGHBOURS),
    ] = 0,
    coverage: CoverageOption = PARTIAL,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, as the REST service answers.")] = False,
) -> None:
    """Find the sentences that match best, without a reader. The exit code is 0 also when there are none.

    While a shard is down, the others are searched, and a notice says so; with --coverage full the exit code is then 3.

    Examples:

        qa-cluster search "finally clause" --top-k 3

        qa-cluster search "finally clause" --filter lang=en --filter "year>=2020"

        qa-cluster search "finally clause" --context 2 --json | jq -r '.hits[].passage.text'
    """
    settings = load_settings(context).settings
    options = SearchOptions(
        top_k=top_k,
        collection=collection,
        doc_id=tuple(doc_id or ()),
        filter=tuple(filter or ()),
        context=around,
        coverage=coverage,
    )
    _check(settings, words, options)
    with ClusterClient(with_cluster(settings)) as client:
        result = client.search(
            words,
            top_k=options.top_k,
            collection=collection,
            doc_id=options.doc_id,
            filter=options.filter,
            context=options.context,
            coverage=options.coverage,
        )
    if json:
        console.say_json(result.to_dict())
    else:
        show(result, chosen=bool(options.doc_id or options.filter))


def _check(settings: Settings, words: str, options: SearchOptions) -> None:
    """Raise BadParameter for what the cluster would refuse: it is wrong usage."""
    try:
        check_search(words, options, AskLimits(question_max_chars=settings.question_max_chars))
    except RequestError as error:
        raise typer.BadParameter(str(error)) from error


def show(result: SearchResult, *, chosen: bool = False) -> None:
    """Print each hit as a line about it and a line of text, with matching words in bold.

    `chosen` says that a filter has chosen among the documents.
    """
    notice_partial(result.index)
    if not result.terms:
        console.say("nothing to search for: these words are too common or too short to be ranked by")
    elif not result.hits:
        console.say(f"no sentence in the {'chosen ' if chosen else ''}documents holds any of these words")
    for hit in result.hits:
        title = f", {hit.title}" if hit.title not in ("", hit.document_id) else ""
        place = f", {found}" if (found := where(hit)) else ""
        console.say(f"{hit.rank}. {hit.document_id}{title}{place} ({hit.start}-{hit.end}, score {hit.score:.2f})")
        console.say_marked([("   ", False), *pieces(hit)])
    total = console.counted(result.sentences, "sentence")
    console.say(f"{len(result.hits)} of {total}, {result.timings_ms.total:.1f} ms")


def pieces(hit: Hit) -> Iterator[tuple[str, bool]]:
    """The text of a hit, with its neighbours, in pieces; each piece is marked if it is a matching word."""
    text, begin = (hit.text, hit.start) if hit.passage is None else (hit.passage.text, hit.passage.start)
    line = _SPACE.sub(" ", text)
    done = 0
    for span in hit.highlights:
        yield line[done : span.start - begin], False
        yield line[span.start - begin : span.end - begin], True
        done = span.end - begin
    yield line[done:], False
