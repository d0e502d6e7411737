"""`qa-cluster demo`: shows the whole system on the Python language reference, and stops all processes at the end."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from qa_cluster.config import LoadedSettings
from qa_cluster.errors import ClusterError, ConfigError
from qa_cluster.security.local_password import PASSWORD_FILE

from ..provision import demo_corpus
from ..provision.inspection import inspect_cluster
from ..provision.provisioning import complete
from ..provision.storing import store
from ..servers import ports, service
from ..servers.local import LocalCluster, start_servers, with_local_password
from ..servers.processes import cpu_ticks, stop_all
from ..servers.signals import ignore_signals, until_signal
from ..terminal import console, tables
from .shared_options import load_settings

_SETTLE_SECONDS, _SETTLE_POLL_SECONDS = 15.0, 0.25


def demo(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Print the answers, stop everything and exit.")] = False,
    port: Annotated[int | None, typer.Option(help="Port of the REST service.", show_default="8080")] = None,
) -> None:
    """Start three shards and the REST service, ingest the Python language reference, and ask a few questions twice.

    The demo runs until Ctrl-C; with --once, it ends after the answers. It uses the folder in --data-dir, else a
    temporary folder, which it removes at the end.

    Example: qa-cluster demo --once
    """
    loaded = load_settings(context, http_port=port)
    started = time.monotonic()
    with until_signal(), _data_folder(loaded) as folder:
        # the service listens on loopback for a short time, so it needs no certificate
        settings = replace(loaded.settings, data_dir=folder, cluster_url="", http_tls_cert="", http_tls_key="")
        loaded = replace(loaded, settings=settings)
        if LocalCluster(loaded.settings).is_running():
            raise ConfigError(
                f"a cluster is running in {str(folder)!r}, and the demo would stop it: ask it with `qa-cluster ask`, or"
                " give the demo a different --data-dir"
            )
        settings = with_local_password(settings)
        if settings != loaded.settings:
            source = {"cluster_password": f"file {folder / PASSWORD_FILE}"}
            loaded = replace(loaded, settings=settings, sources={**loaded.sources, **source})
        try:
            _run(loaded, folder, started, once)
        except KeyboardInterrupt:
            console.step("stopping")
        finally:
            ignore_signals()
            LocalCluster(loaded.settings).down()


def _run(loaded: LoadedSettings, folder: Path, started: float, once: bool) -> None:
    url = start_servers(loaded.settings, console.step, console.notice, tethered=True)
    complete(loaded.settings, url, console.step)
    store(replace(loaded.settings, cluster_url=url), (("demo", document) for document in demo_corpus.documents()))
    wanted = loaded.settings.http_port
    port = ports.next_free(wanted, loaded.settings.http_host)
    if port != wanted:
        console.notice(f"another program uses port {wanted}: the REST service listens on port {port}")
    console.step("starting the REST service")
    process, address = service.start(
        loaded, url, port, folder / "api.log", page_questions="\n".join(demo_corpus.QUESTIONS)
    )
    try:
        _wait_idle(loaded, url)
        rows = list(_ask_all(address))
        tables.table(
            rows,
            title="The Python language reference answers",
            right=("score", "first\nms", "again\nms"),
            minor=("shard", "document\nand sentence"),
        )
        console.step(f"{time.monotonic() - started:.1f} s from the start to the last answer")
        if not once:
            console.say(f"\nAsk more at {address}/ or: curl '{address}/qa?question=What+is+a+namespace'")
            console.say("Ctrl-C stops everything.")
            while process.is_running():
                time.sleep(0.2)
            raise ClusterError("the REST service ended unexpectedly")
    finally:
        stop_all([process], loaded.settings.stop_timeout_ms / 1000)


def _ask_all(address: str) -> Iterator[dict[str, Any]]:
    with httpx.Client(base_url=address, timeout=30.0) as client:
        for question in demo_corpus.QUESTIONS:
            result, first_ms = _ask(client, question)
            _, again_ms = _ask(client, question)
            best = result["answers"][0] if result["answers"] else {}
            yield {
                "question": question,
                "answer": " ".join(best.get("answer", "(no answer)").split()),
                "score": f"{best['score']:.2f}" if best else "",
                "document\nand sentence": best.get("passage_id", ""),
                "shard": best.get("shard", ""),
                "first\nms": f"{first_ms:.1f}",
                "again\nms": f"{again_ms:.1f}",
            }


def _ask(client: httpx.Client, question: str) -> tuple[dict[str, Any], float]:
    """Return the REST service's response to a question, and the milliseconds until it arrived."""
    began = time.perf_counter()
    response = client.get("/qa", params={"question": question})
    elapsed_ms = (time.perf_counter() - began) * 1000
    if not response.is_success:
        raise ClusterError(f"the REST service answered {response.status_code}: {response.text[:300]}")
    answer: dict[str, Any] = response.json()
    return answer, elapsed_ms


def _wait_idle(loaded: LoadedSettings, url: str) -> None:
    """Wait until the workers have used no processor time for `_SETTLE_POLL_SECONDS`, but at most `_SETTLE_SECONDS`.

    While a worker has no requests, it runs the reader once for each input length that it has not run yet, because the
    first run of a length takes longer. This work would slow the demo's questions.
    """
    shards = inspect_cluster(loaded.settings, url).shards
    pids = [int(shard.module_info.get("qa_worker_pid", 0)) for shard in shards]
    deadline = time.monotonic() + _SETTLE_SECONDS
    before: list[int | None] = []
    while (now := [cpu_ticks(pid) for pid in pids]) != before and time.monotonic() < deadline:
        before = now
        time.sleep(_SETTLE_POLL_SECONDS)


@contextmanager
def _data_folder(loaded: LoadedSettings) -> Iterator[Path]:
    """Yield the data folder that the user has given. Without such a folder, yield a temporary one, and remove it at the
    end.
    """
    if loaded.sources["data_dir"] != "default":
        yield loaded.settings.data_dir
        return
    with tempfile.TemporaryDirectory(prefix="qa-demo-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
