"""`qa-cluster model bench`: measures a reader on the shards."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from qa_cluster.errors import ConfigError

from ...readers import reader_bench, reader_listing
from ...terminal import console, tables
from ..shared_options import Json
from .place import address_of


def bench(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(help="A loaded reader, an id or id@revision.", show_default="the default one")
    ] = "",
    rounds: Annotated[int, typer.Option(help="Runs of each shape.", min=1, max=10_000)] = 30,
    json: Json = False,
) -> None:
    """Measure a reader on the shards: its runs by length and batch, and the reading of one question.

    Times are milliseconds as a client of the shard sees them: the median, and in JSON also the 95th percentile. The
    command removes what it stores. Other load on the shards makes them longer.

    Example: qa-cluster model bench my-reader --rounds 100
    """
    settings, place = address_of(context, 60.0)
    found = reader_listing.listing(place)
    defaults = {entry.name for entries in found.values() for entry in entries if entry.default}
    if not name and len(defaults) != 1:
        raise ConfigError(f"the shards have {len(defaults)} default readers, name the one to measure")
    chosen = reader_listing.find(found, name) if name else defaults.pop()
    results = reader_bench.measure(settings, place.url, chosen, rounds, console.step)
    if json:
        console.say_json({"reader": chosen, "rounds": rounds, "shards": [asdict(result) for result in results]})
        return
    for result in results:
        tables.table(reader_bench.rows(result), title=f"{chosen} on {result.shard}, ms", right=reader_bench.COLUMNS)
        for text in result.notes:
            console.notice(text)
