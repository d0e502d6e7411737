"""`qa-cluster model load`, `use`, `unload`, `list` and `bench`: the readers on the shards."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError

from ..nodes.all_shards import Place
from ..nodes.connect import shards_of
from ..provision.provisioning import provision
from ..readers import reader_bench, reader_loading, shard_readers
from ..readers.reader_files import budget_of, default_reader_folder, read_reader
from ..readers.shard_readers import ShardReader
from ..servers.signals import until_signal
from . import console
from .session import Session, cluster_url

_Timeout = Annotated[float, typer.Option("--timeout", help="Longest time for all of it, in seconds.", min=1)]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Name = Annotated[str, typer.Argument(help="A loaded reader, an id or id@revision (`qa-cluster model list`).")]
_TIMEOUT_SECONDS = 300.0


def add_to(model: typer.Typer) -> None:
    """Add the commands."""
    for name, command in (("load", load), ("use", use), ("unload", unload), ("list", list_readers), ("bench", bench)):
        model.command(name)(command)


def _place(context: typer.Context, seconds: float) -> tuple[Settings, Place]:
    session: Session = context.obj
    settings = session.load().settings
    return settings, Place.of(settings, cluster_url(settings), seconds, console.step)


def load(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of a reader.", exists=True, file_okay=False, show_default="bundled")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Its id on the shards.", metavar="ID", show_default="the manifest's")
    ] = None,
    context_tokens: Annotated[
        int | None,
        typer.Option(
            help="Budget, in tokens, of a sentence with its neighbours; 0: each sentence alone.",
            min=0,
            show_default="the setting context_tokens, else the manifest's",
        ),
    ] = None,
    keep_old: Annotated[bool, typer.Option("--keep-old", help="Keep the former default reader beside it.")] = False,
    beside: Annotated[
        bool, typer.Option("--beside", help="Only load it: the default reader stays the default.")
    ] = False,
    timeout: _Timeout = _TIMEOUT_SECONDS,
) -> None:
    """Put a reader on every shard and let it answer in place of the one that is there, without a pause.

    It is stored beside the present one and compiled on every shard; then all shards change over, and the former one is
    removed. Answers of the former one are not used any more. If anything fails before the change, nothing has changed.
    A shard's worker needs memory for about three times the model's size (qa.worker-memory-mb).

    Examples:

        qa-cluster model load my-reader

        qa-cluster model load my-reader --name my-reader-v2 --beside

        qa-cluster model load --context-tokens 128
    """
    settings, place = _place(context, timeout)
    budget = budget_of(settings) if context_tokens is None else context_tokens
    reader = read_reader(folder or default_reader_folder(), budget, name)
    _need_functions(settings, place.url)
    with until_signal():
        removed = reader_loading.load(place, reader, beside=beside, keep_old=keep_old)
    console.say(f"loaded {reader.tag}{' beside the default one' if beside else ''}")
    for old in removed:
        console.say(f"removed {old}")


def _need_functions(settings: Settings, url: str) -> None:
    """A cluster that was never set up gets partitions and functions first."""
    shards = shards_of(settings, url)
    try:
        lacking = not all(shard_readers.has_functions(client) for _, client in shards)
    finally:
        for _, client in shards:
            client.close()
    if lacking:
        provision(settings, url, None, console.step)


def use(context: typer.Context, name: _Name, timeout: _Timeout = _TIMEOUT_SECONDS) -> None:
    """Let a reader that is loaded answer by default. The former default one stays loaded; no question is lost.

    Example: qa-cluster model use my-reader
    """
    _, place = _place(context, timeout)
    console.say(f"the default reader is {reader_loading.use(place, name)}")


def unload(
    context: typer.Context,
    name: _Name,
    force: Annotated[bool, typer.Option("--force", help="Also the default reader: nothing is answered then.")] = False,
    timeout: _Timeout = _TIMEOUT_SECONDS,
) -> None:
    """Remove a reader from every shard, and its cached answers.

    Example: qa-cluster model unload my-reader@0123456789ab
    """
    _, place = _place(context, timeout)
    console.say(f"removed {reader_loading.unload(place, name, force=force)}")


def list_readers(context: typer.Context, json: _Json = False, timeout: _Timeout = 30.0) -> None:
    """Show the readers on the shards: which answers by default, and on how many shards each is ready.

    Example: qa-cluster model list --json | jq -r '.[] | select(.default) | .name'
    """
    _, place = _place(context, timeout)
    found = reader_loading.listing(place)
    rows = summary(found)
    for name, addresses in reader_loading.parts(place, found).items():
        console.notice(
            f"{name} is not whole on {', '.join(addresses)}: it is being loaded now, or was left behind; then load it"
            f" again, or remove it with `qa-cluster model unload {name}`"
        )
    if json:
        console.say_json(rows)
        return
    console.table(
        [
            {
                "name": row["id"],
                "revision": row["revision"],
                "default": _default_text(row),
                "precision": row["precision"],
                "context tokens": row["context_tokens"] or "",
                "MB": f"{row['bytes'] / 1e6:.1f}",
                "ready on": f"{row['warm']} of {row['shards']}",
            }
            for row in rows
        ],
        right=("MB", "context tokens"),
        minor=("context tokens", "precision"),
    )
    for row in rows:
        for address, problem in row["problems"].items():
            console.notice(f"{row['name']} on {address}: {problem}")


def _default_text(row: dict[str, Any]) -> str:
    """A change of the default that one shard has missed is not to look like no default at all."""
    if row["default"]:
        return "yes"
    return f"on {len(row['default_on'])} of {row['shards']}" if row["default_on"] else ""


def summary(found: dict[str, list[ShardReader]]) -> list[dict[str, Any]]:
    """One row for each reader of the cluster, the default one first."""
    by_name: dict[str, dict[str, ShardReader]] = {}
    for address, entries in found.items():
        for entry in entries:
            by_name.setdefault(entry.name, {})[address] = entry
    rows = []
    for name, on in by_name.items():
        first = next(iter(on.values()))
        rows.append(
            {
                "name": name,
                "id": first.id,
                "revision": first.revision,
                "default": all(address in on and on[address].default for address in found),
                "default_on": sorted(address for address, entry in on.items() if entry.default),
                "precision": first.precision,
                "bytes": first.bytes,
                "context_tokens": first.context_tokens,
                "warm": sum(entry.warm for entry in on.values()),
                "shards": len(found),
                "problems": {address: entry.problem for address, entry in on.items() if entry.problem},
            }
        )
    return sorted(rows, key=lambda row: (not row["default_on"], str(row["name"])))


def bench(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(help="A loaded reader, an id or id@revision.", show_default="the default one")
    ] = "",
    rounds: Annotated[int, typer.Option(help="Runs of each shape.", min=1, max=10_000)] = 30,
    json: _Json = False,
) -> None:
    """Measure a reader where it is, through each shard's worker: runs by length and batch, and one question's reading.

    Times are milliseconds as a client of the shard sees them: median, and in JSON also the 95th percentile. What is
    stored for it is removed again. Other load on the shards counts in.

    Example: qa-cluster model bench my-reader --rounds 100
    """
    settings, place = _place(context, 60.0)
    found = reader_loading.listing(place)
    defaults = {entry.name for entries in found.values() for entry in entries if entry.default}
    if not name and len(defaults) != 1:
        raise ConfigError(f"the shards have {len(defaults)} default readers, name the one to measure")
    chosen = reader_loading.find(found, name) if name else defaults.pop()
    results = reader_bench.measure(settings, place.url, chosen, rounds, console.step)
    if json:
        console.say_json({"reader": chosen, "rounds": rounds, "shards": [asdict(result) for result in results]})
        return
    for result in results:
        console.table(reader_bench.rows(result), title=f"{chosen} on {result.shard}, ms", right=reader_bench.COLUMNS)
        for text in result.notes:
            console.notice(text)
