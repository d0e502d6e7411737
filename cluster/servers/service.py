"""Starts the REST service as a process, and waits until it is ready."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import httpx

from qa_cluster.config import LoadedSettings
from qa_cluster.errors import ClusterError

from ..nodes.polling import POLL_SECONDS
from .processes import ProcessRef, python_module, spawn, stop_all
from .server_process import log_tail

API_MODULE = "qa_cluster.api"


def command_line() -> list[str]:
    """Return the command line of the service, which reads its settings from the environment."""
    return python_module(API_MODULE)


def environment(loaded: LoadedSettings, url: str, **overrides: object) -> Mapping[str, str]:
    """Return the environment variables of the service: those of this process, and the settings of this command with the
    cluster at `url`. `overrides` are values of settings that replace the settings of this command, by the name of the
    setting.
    """
    given = {f"QA_{name.upper()}": str(value) for name, value in overrides.items()}
    return {**os.environ, **loaded.environment(), "QA_CLUSTER_URL": url, **given}


def start(loaded: LoadedSettings, url: str, port: int, log: Path, **overrides: object) -> tuple[ProcessRef, str]:
    """Start the service on `port`, and wait until it is ready. Return its process and its address. If it is not ready
    within `start_timeout_ms`, stop it and raise ClusterError.

    On Linux, the service ends with this process. `overrides` are values of settings that replace the settings of this
    command. `log` is the file for the output of the service.
    """
    settings = loaded.settings
    pid = spawn(
        command_line(),
        log=log,
        environment=environment(loaded, url, http_port=port, **overrides),
        tether_signal=signal.SIGTERM,
    )
    process = ProcessRef(pid, f"-m {API_MODULE}", "REST service")
    address = f"http://{settings.http_host}:{port}"
    try:
        _wait_ready(process, address, log, time.monotonic() + settings.start_timeout_ms / 1000)
    except BaseException:
        stop_all([process], timeout_seconds=1.0)
        raise
    return process, address


def _wait_ready(process: ProcessRef, address: str, log: Path, deadline: float) -> None:
    with httpx.Client(timeout=2.0) as client:
        while True:
            try:
                response = client.get(f"{address}/readyz")
                if response.is_success:
                    return
                problem = f"{response.status_code} {response.text[:300]}"
            except httpx.TransportError as error:
                problem = str(error)
            if not process.is_running():
                raise ClusterError(f"the REST service ended during its start:\n{log_tail(log)}")
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the REST service was not ready within start_timeout_ms ({problem}):\n{log_tail(log)}"
                )
            time.sleep(POLL_SECONDS)
