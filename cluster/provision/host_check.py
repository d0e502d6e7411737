"""Checks whether this host can run a server of the cluster, without changing anything.

Each check gives one line: what was checked, and the result or what to do. The last checks start a server with the
module and a worker in a temporary folder, and connect to the other servers from this host.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import redis

from qa_cluster import __version__
from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError, ConfigError, QAError
from qa_cluster.routing.cluster_address import address_of
from qa_cluster.security.passwords import without_passwords
from qa_cluster.topology import Address

from ..nodes.connect import server_client, unreached
from ..nodes.worker_start import WorkerStart, wait_worker
from ..servers import ports, server_process, single
from ..servers.module_options import module_options
from ..servers.native import find_module
from ..servers.processes import stop_all

CLOCK_SECONDS = 60.0
_PROGRAM, _MODULE, _WORKER = "server program", "module file", "worker environment"
_TRIAL = "server, module and worker"
_FOR_TRIAL = (_PROGRAM, _MODULE, _WORKER)
_TRIAL_WORKERS = 3
_REACH_SECONDS = 3.0
_IMPORT_SECONDS = 120
_FACTS = (
    "import json, sys, qa_cluster, qa_cluster.gears.process.service;"
    "print(json.dumps([qa_cluster.__version__, sys.version.split()[0]]))"
)


@dataclass(frozen=True)
class Check:
    """The result of one check. `said` says what was found, or what is wrong and what to do."""

    what: str
    ok: bool
    said: str


@dataclass(frozen=True)
class HostPlan:
    """A server for this host: its address and port, and the name or address under which other servers reach it."""

    settings: Settings
    host: str
    port: int
    announce: str = ""


def check_host(plan: HostPlan) -> Iterator[Check]:
    """Run all checks, and yield each result. The last checks take several seconds."""
    settings = plan.settings
    checks: list[tuple[str, Callable[[], str]]] = [
        (_PROGRAM, lambda: _program(settings)),
        (_MODULE, lambda: str(find_module(settings.module_path))),
        (_WORKER, lambda: _environment(settings)),
        ("password", lambda: _password(plan)),
        ("bus key", lambda: _bus_key(settings)),
        ("certificate", lambda: _certificate(plan)),
        (f"ports {plan.port} and {plan.port + ports.BUS_OFFSET}", lambda: _ports(plan)),
        (_TRIAL, lambda: _trial(settings)),
    ]
    if settings.cluster_url:
        checks += [
            (f"server {address}", lambda address=address: _other(plan, address))  # type: ignore[misc]
            for address in address_of(settings).seeds
        ]
    missing = False
    for what, examine in checks:
        if what == _TRIAL and missing:
            yield Check(what, False, "not tried, because something above is missing")
            continue
        result = _result(what, examine, tls=settings.cluster_url.startswith("rediss:"))
        missing = missing or (what in _FOR_TRIAL and not result.ok)
        yield result


def _result(what: str, examine: Callable[[], str], *, tls: bool) -> Check:
    try:
        return Check(what, True, examine())
    except redis.exceptions.RedisError as error:
        return Check(what, False, unreached(error, tls=tls))
    except (QAError, OSError) as error:
        return Check(what, False, str(error))


def _program(settings: Settings) -> str:
    program = server_process.find_program(settings.server)
    found = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=_IMPORT_SECONDS, check=False
    ).stdout.split()
    version = next((word.removeprefix("v=") for word in found if word.startswith("v=")), "")
    if not version:
        raise ConfigError(
            f"{program!r} is not redis-server or valkey-server, because it does not print its version: choose another"
            " program with --server"
        )
    if int(version.partition(".")[0]) < 7:
        raise ConfigError(f"{program!r} has version {version}, but Redis 7.0, Valkey 8 or newer is needed")
    return f"{program}, version {version}"


def _environment(settings: Settings) -> str:
    """Check that the Python of the worker can import the worker, and that the qa-cluster of this Python has the same
    version as this command. Return the path and the version of this Python and the version of qa-cluster, as text.
    """
    python = settings.worker_python or sys.executable
    try:
        done = subprocess.run(
            [python, "-P", "-c", _FACTS],
            capture_output=True,
            text=True,
            timeout=_IMPORT_SECONDS,
            check=False,
            env=without_passwords(os.environ),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"setting 'worker_python': {python!r} cannot be run: {error}") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ConfigError(f"{python!r} cannot run a worker: {last}; install qa-cluster there (docs/deployment.md)")
    version, own = json.loads(done.stdout)
    if version != __version__:
        raise ConfigError(
            f"{python!r} has qa-cluster {version}, but this command has {__version__}: install the same version there"
        )
    return f"{python}, Python {own}, qa-cluster {version}"


def _password(plan: HostPlan) -> str:
    single.need_password(plan.settings, plan.host)
    return "is set" if plan.settings.cluster_password else "none: the server listens on loopback"


def _bus_key(settings: Settings) -> str:
    if settings.bus_key_file:
        module_options(settings)  # raises ConfigError if the file is missing
        return settings.bus_key_file
    if settings.cluster_password:
        return "derived from the password"
    raise ConfigError(
        "none: set 'bus_key_file' or 'cluster_password', with the same value on all servers; functions that run on"
        " several shards need this key"
    )


def _certificate(plan: HostPlan) -> str:
    settings = plan.settings
    tls = single.server_tls_of(settings, single.resolved(plan.announce) if plan.announce else "")
    if tls is None:
        if settings.cluster_url.partition("://")[0] in ("rediss", "valkeys"):
            raise ConfigError(
                "none, but setting 'cluster_url' requires TLS (rediss://): add --tls-cert, --tls-key and"
                " --cluster-tls-ca"
            )
        return "none: no TLS"
    server_process.need_tls(server_process.find_program(settings.server))
    return f"{tls.cert}, signed by {tls.ca}" + (f", for {plan.announce}" if plan.announce else "")


def _ports(plan: HostPlan) -> str:
    single.check_port(plan.port)
    for port in (plan.port, plan.port + ports.BUS_OFFSET):
        try:
            ports.bind_once(port, plan.host)
        except OSError as error:
            if port == plan.port and _has_module(plan):
                return "a server with the module already listens there"
            raise ConfigError(f"cannot listen on {plan.host}:{port}: {error.strerror or error}") from error
    return f"free on {plan.host}"


def _has_module(plan: HostPlan) -> bool:
    """Return whether a server with the module already listens on the port of `plan`. Return False if the server refuses
    the login.
    """
    host = plan.announce or ("127.0.0.1" if plan.host in ("0.0.0.0", "::") else plan.host)
    scheme = "rediss" if plan.settings.server_tls_cert else "redis"
    try:
        with server_client(plan.settings, f"{scheme}://{host}:{plan.port}", Address(host, plan.port)) as client:
            return "qa_worker_state" in client.info("everything")
    except (redis.exceptions.RedisError, QAError):
        return False


def _trial(settings: Settings) -> str:
    """Start a server with the module in a temporary folder, and wait until the worker that the module starts is ready.
    Then stop the server. Raises ClusterError with the end of the server's log.
    """
    patience_seconds = settings.start_timeout_ms / 1000
    with tempfile.TemporaryDirectory(prefix="qa-cluster-check-") as folder:
        spec = server_process.ServerSpec(
            Path(folder) / "trial",
            server_process.find_program(settings.server),
            0,
            cluster=False,
            options=module_options(settings),
            tethered=True,
        )
        process = server_process.start(spec, patience_seconds)
        try:
            with server_process.connect(spec) as client:
                wait_worker(client, WorkerStart("the worker", patience_seconds, _TRIAL_WORKERS))
        except ClusterError as error:
            raise ClusterError(f"{error}\n{server_process.log_tail(spec.log_path)}") from error
        finally:
            stop_all([process], settings.stop_timeout_ms / 1000, insist=True)
    return "started as a test; the worker was ready"


def _other(plan: HostPlan, address: Address) -> str:
    """Log in to the server at `address`, check that it has the module, connect to its cluster bus, and compare its
    clock with the clock of this host.
    """
    settings = plan.settings
    quick = replace(settings, connect_timeout_ms=min(settings.connect_timeout_ms, int(_REACH_SECONDS * 1000)))
    with server_client(quick, settings.cluster_url, address, socket_timeout=_REACH_SECONDS) as client:
        seconds, microseconds = client.time()
        has_module = "qa_worker_state" in client.info("everything")
    apart = abs(seconds + microseconds / 1e6 - time.time())
    try:
        socket.create_connection((address.host, address.port + ports.BUS_OFFSET), _REACH_SECONDS).close()
    except OSError as error:
        raise ClusterError(
            f"this host cannot reach its cluster bus, port {address.port + ports.BUS_OFFSET}: {error.strerror or error}"
        ) from error
    if not has_module:
        raise ClusterError(
            "answers, but without the module: add the lines from `qa-cluster config --module` to its configuration"
        )
    if apart > CLOCK_SECONDS:
        raise ClusterError(
            f"its clock differs by {apart:.0f} s from the clock of this host, but the limit is {CLOCK_SECONDS:.0f} s:"
            " synchronize the clocks"
        )
    return "answers, with the module; its cluster bus can be reached"
