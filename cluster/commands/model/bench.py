"""`qa-cluster model bench`: measures a reader on the shards."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from qa_cluster.errors import ConfigError

from ...readers import reader_bench, reader_listing
from ...terminal import console, tables
from ..shared_options import Json
from .operation import operation_of


def bench(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(help="A loaded reader: id or id@revision.", show_default="the default reader")
    ] = "",
    rounds: Annotated[int, typer.Option(help="Number of runs for each input shape.", min=1, max=10_000)] = 30,
    json: Json = False,
) -> None:
    """Measure the speed of a reader on the shards: for each input length and batch size, and for one question.

    Times are in milliseconds, measured by a client of the shard: the median and, in JSON, the 95th percentile. Other
    load on the shards increases the times. The command removes the data that it stores.

    Example: qa-cluster model bench my-reader --rounds 100
    """
    settings, operation = operation_of(context, 60.0)
    found = reader_listing.listing(operation)
    defaults = {entry.name for entries in found.values() for entry in entries if entry.default}
    if not name and len(defaults) != 1:
        raise ConfigError(
            f"the shards have {len(defaults)} default readers ({', '.join(sorted(defaults)) or 'none'}): name the"
            " reader to measure"
        )
    chosen = reader_listing.find(found, name) if name else defaults.pop()
    results = reader_bench.measure(settings, operation.url, chosen, rounds, console.step)
    if json:
        console.say_json({"reader": chosen, "rounds": rounds, "shards": [asdict(result) for result in results]})
        return
    for result in results:
        tables.table(reader_bench.rows(result), title=f"{chosen} on {result.shard}, ms", right=reader_bench.COLUMNS)
        for text in result.notes:
            console.notice(text)
