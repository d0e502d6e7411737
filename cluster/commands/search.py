"""`qa-cluster search`: prints the sentences that best match a query."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import typer

from qa_cluster.asking.questions import AskLimits, check_search
from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.options.questions import PARTIAL, SearchOptions
from qa_cluster.ranking.meaning import WORDS
from qa_cluster.reading.passages import MAX_NEIGHBOURS
from qa_cluster.shard_functions import MAX_RANK_COUNT
from qa_cluster.types import Hit, SearchResult

from ..servers.local import with_cluster
from ..terminal import console
from .ask import notice_partial, where
from .shared_options import (
    CoverageOption,
    FilterOption,
    JsonOfService,
    RetrieverOption,
    load_settings,
    refusals_as_usage,
    text_option,
)

_SPACE = re.compile(r"\s")


def search(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    words: Annotated[str, typer.Argument(help="The query: words or a question.")],
    top_k: Annotated[int, typer.Option(help="Maximum number of sentences.", min=1, max=MAX_RANK_COUNT)] = 10,
    doc_id: Annotated[list[str] | None, text_option("ID", "Only sentences of this document; repeatable.")] = None,
    filter: FilterOption = None,
    collection: Annotated[
        list[str] | None,
        text_option("NAME", "Collection to search; repeatable; * searches all collections. [default: default]"),
    ] = None,
    around: Annotated[
        int,
        typer.Option(
            "--context", help="Show this many sentences before and after each sentence.", min=0, max=MAX_NEIGHBOURS
        ),
    ] = 0,
    coverage: CoverageOption = PARTIAL,
    retriever: RetrieverOption = WORDS,
    prefix: Annotated[
        bool, typer.Option("--prefix", help="Treat the last word as the start of a word, for search while typing.")
    ] = False,
    json: JsonOfService = False,
) -> None:
    """Find the sentences that best match the words, without a reader. The exit code is 0 even without a match.

    While a shard is down, the command searches the other shards and prints a note. With --coverage full, it instead
    fails with exit code 3.

    Examples:

        qa-cluster search "finally clause" --top-k 3

        qa-cluster search "finally clause" --filter lang=en --filter "year>=2020"

        qa-cluster search "finally cla" --prefix --collection "*"

        qa-cluster search "finally clause" --context 2 --json | jq -r '.hits[].passage.text'
    """
    settings = load_settings(context).settings
    options = SearchOptions(
        top_k=top_k,
        collection=tuple(collection or (DEFAULT_COLLECTION,)),
        doc_id=tuple(doc_id or ()),
        filter=tuple(filter or ()),
        context=around,
        coverage=coverage,
        retriever=retriever,
        prefix=prefix,
    )
    with refusals_as_usage():
        check_search(words, options, AskLimits(question_max_chars=settings.question_max_chars))
    with ClusterClient(with_cluster(settings)) as client:
        result = client.search(
            words,
            top_k=options.top_k,
            collection=options.collection,
            doc_id=options.doc_id,
            filter=options.filter,
            context=options.context,
            coverage=options.coverage,
            retriever=options.retriever,
            prefix=options.prefix,
        )
    if json:
        console.say_json(result.to_dict())
    else:
        show(result, filtered=bool(options.doc_id or options.filter))


def show(result: SearchResult, *, filtered: bool = False) -> None:
    """Print each hit as two lines: its document and score, then its text with the matching words in bold.

    `filtered` says that the search was limited to some documents.
    """
    notice_partial(result.index)
    if not result.terms and not result.hits:
        console.say("nothing to search for: these words are too common or too short for a search")
    elif not result.hits:
        console.say(f"no sentence in the {'chosen ' if filtered else ''}documents contains any of these words")
    several = len(result.collections) > 1
    for hit in result.hits:
        title = f", {hit.title}" if hit.title not in ("", hit.document_id) else ""
        place = f", {found}" if (found := where(hit)) else ""
        shown = f"{hit.collection}: {hit.document_id}" if several else hit.document_id
        console.say(f"{hit.rank}. {shown}{title}{place} ({hit.start}-{hit.end}, score {hit.score:.2f})")
        console.say_marked([("   ", False), *pieces(hit)])
    total = console.counted(result.sentences, "sentence")
    console.say(f"{len(result.hits)} of {total}, {result.timings_ms.total:.1f} ms")


def pieces(hit: Hit) -> Iterator[tuple[str, bool]]:
    """Yield the text of a hit with its neighbouring sentences, in pieces. Each piece has a flag: True if the piece is a
    word that matches the query.
    """
    text, begin = (hit.text, hit.start) if hit.passage is None else (hit.passage.text, hit.passage.start)
    line = _SPACE.sub(" ", text)
    done = 0
    for span in hit.highlights:
        yield line[done : span.start - begin], False
        yield line[span.start - begin : span.end - begin], True
        done = span.end - begin
    yield line[done:], False
