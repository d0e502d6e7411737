"""`qa-cluster status`: shows the state of the shards and of the background jobs, and what the cluster lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import typer

from ..provision import jobs
from ..provision.inspection import ClusterReport, ShardReport, inspect_cluster
from ..servers.local import cluster_url
from ..terminal import console, tables
from .shared_options import Json, load_settings

_NOT_READY = 3
_MAX_LISTED = 5


def status(
    context: typer.Context,
    json: Json = False,
) -> None:
    """Show each shard, its reader and its documents, and what the cluster still needs to answer questions.

    The exit code is 0 if the cluster can answer, and 3 if it is not running or something is missing.

    Example: qa-cluster status --json | jq '.shards[].documents'
    """
    settings = load_settings(context).settings
    report = inspect_cluster(settings, cluster_url(settings))
    background = jobs.progress(settings)
    if json:
        console.say_json(
            {
                **asdict(report),
                "collections": report.collections,
                "ready": report.ready,
                "jobs": [asdict(job) for job in background],
            }
        )
    else:
        _show(report, local=not settings.cluster_url)
        tables.table([asdict(job) for job in background], title="background jobs")
    if not report.ready:
        raise typer.Exit(_NOT_READY)


def _show(report: ClusterReport, *, local: bool) -> None:
    partitions = "unknown number of partitions" if report.partitions is None else f"{report.partitions} partitions"
    console.say(f"cluster {report.address}, {report.server}, {partitions}")
    tables.table(
        [_row(shard) for shard in report.shards],
        right=("slots", "replicas", "functions", "documents", "sentences", "memory MB"),
        minor=("functions", "replicas", "model", "slots", "memory MB"),
    )
    if len(report.collections) > 1:
        tables.table(
            [
                {"collection": name, "documents": documents, "sentences": sentences}
                for name, (documents, sentences) in report.collections.items()
            ],
            right=("documents", "sentences"),
        )
    _show_progress(report)
    if waiting := sum(shard.unembedded for shard in report.shards):
        console.notice(
            f"{console.counted(waiting, 'document')} without vectors yet: questions find them by their words;"
            " `qa-cluster prepare` makes the vectors now"
        )
    _show_failed([text for shard in report.shards for text in shard.failed])
    for text in report.all_problems():
        console.notice(text)
    if report.down:
        advice = "`qa-cluster up` starts servers again, with their data" if local else "start it again on its host"
        for server in report.down:
            console.notice(f"server {server} does not answer: {advice}")
    for text in filter(None, (report.reindexing, *report.hints)):
        console.notice(text)
    if report.ready:
        console.say("ready to answer")


def _show_failed(failed: list[str]) -> None:
    if failed:
        more = f"; and {len(failed) - _MAX_LISTED} more" if len(failed) > _MAX_LISTED else ""
        console.notice(
            f"{console.counted(len(failed), 'document')} could not be indexed; write them again to retry:"
            f" {'; '.join(failed[:_MAX_LISTED])}{more}; see `qa-cluster documents list --failed`"
        )


def _row(shard: ShardReport) -> dict[str, object]:
    row: dict[str, object] = {
        "shard": shard.address,
        "slots": shard.slots,
        "replicas": shard.replicas,
        "model": shard.model,
        "functions": shard.registrations,
        "worker": _worker(shard.module_info),
        "documents": shard.documents,
        "sentences": shard.sentences,
        "memory MB": f"{shard.memory_bytes / 1e6:.1f}",
    }
    if not shard.reachable:
        known = ("shard", "slots", "replicas")
        return {name: row[name] if name in known else "" for name in row} | {"worker": "server is down"}
    return row


def _worker(info: Mapping[str, Any]) -> str:
    """Return the state of a shard's worker and the models that the worker refuses. If the worker has inference workers,
    add their number and their memory.
    """
    state, workers = str(info.get("qa_worker_state", "")), int(info.get("qa_inference_workers", 0))
    if refused := int(info.get("qa_models_refused", 0)):
        shown = [str(value) for name, value in info.items() if name.startswith("qa_model_refused_")]
        state += f", models refused until stored again: {refused} ({'; '.join(shown)})"
    if not workers:
        return state
    megabytes = (int(info.get("qa_inference_rss_bytes", 0)) + int(info.get("qa_inference_file_bytes", 0))) / 1e6
    missing = int(info.get("qa_inference_missing", 0))
    inference = f"{info.get('qa_inference_ready', 0)} of {workers} inference workers ({megabytes:.0f} MB)"
    return f"{state}, {inference}" + (f", models to be loaded again: {missing}" if missing else "")


def _show_progress(report: ClusterReport) -> None:
    """Print the progress or the result of the last `qa-cluster prepare`, one row for each shard on which it has run."""
    rows = [
        {
            "shard": shard.address,
            "preparation": shard.progress.get("state", ""),
            "tokens": f"{shard.progress.get('done', 0)} of {shard.progress.get('total', 0)}",
            "vectors": f"{shard.progress.get('embedded', 0)} of {shard.progress.get('to_embed', 0)}",
            "sentences": shard.progress.get("sentences", 0),
            "failed": shard.progress.get("failed", 0),
        }
        for shard in report.shards
        if shard.progress
    ]
    title = "Results of the last `qa-cluster prepare`:"
    tables.table(rows, title=title, right=("tokens", "vectors", "sentences", "failed"))
