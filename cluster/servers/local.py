"""Starts and stops the local cluster of a data folder, and finds its running servers.

Each node has a folder ``node-<n>``. ``cluster.json`` records the nodes. Every command finds the running servers by
their pid files, so it also sees the servers that a killed command has started. Node folders are removed only if the
creation of their cluster was not completed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import redis

from qa_cluster.config import Settings, client_tls_files
from qa_cluster.errors import ClusterError, ConfigError
from qa_cluster.security.local_password import PASSWORD_FILE, stored_password
from qa_cluster.topology import Address

from ..nodes import formation
from ..nodes.all_shards import OnStep
from ..nodes.cluster_secrets import allow_replication, use_replication_user
from ..nodes.connect import NotRunning
from . import ports
from .certificates import make_certificates, need_files, server_tls, tls_folder
from .module_options import ADOPT_SETTING, model_cache_default, module_options, server_options
from .processes import ProcessRef, stop_all
from .server_process import ServerSpec, connect, find_program, launch, need_tls, running, wait_ready
from .state import (
    ClusterState,
    bus_key_file,
    data_folder,
    locked,
    make_password,
    read_state,
    replication_file,
    write_state,
)

_PORT_RETRIES = 3  # how often `up` retries after another program has taken a chosen port


@dataclass(frozen=True)
class UpReport:
    """The result of `up`: the address of the cluster, whether the cluster is new, how many servers were started, and
    notes for the user.
    """

    url: str
    created: bool
    started: int
    notices: tuple[str, ...]


class LocalCluster:
    """The cluster in ``settings.data_dir``. `options` are additional configuration lines for every server. Without the
    lines from `module_options`, the servers run without the module.

    On Linux, a tethered cluster ends with this process, even if this process is killed. Raises ConfigError if
    `data_folder` refuses the folder.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        options: Sequence[tuple[str, str]] = (),
        tethered: bool = False,
        on_step: OnStep = lambda text: None,
    ) -> None:
        self.settings = settings
        self.data_dir: Path = data_folder(settings)
        self._options = tuple(options)
        self._tethered = tethered
        self._step = on_step

    def up(self) -> UpReport:
        """Create the cluster, or start those of its servers that are not running, and wait until the cluster is
        complete. After an error, stop the servers that this call has started.
        """
        deadline = time.monotonic() + self.settings.start_timeout_ms / 1000
        need_files(self.data_dir, self.settings)
        with locked(self.data_dir):
            state = read_state(self.data_dir)
            created = state is None or not state.created
            if state is None or not state.created:
                state = self._prepare_new(state)
            self._check_shape(state)
            state, notices = self._with_free_ports(state)
            missing = self._missing(state)
            if missing and missing[0].tls:
                need_tls(state.program)
            if missing:
                self._prepare_running(state)
            launched: list[ProcessRef] = []
            try:
                starting = f"starting {len(missing)} of {len(state.ports)} servers"
                self._step(starting if missing else f"all {len(state.ports)} servers are already running")
                failure = self._start(missing, launched, deadline)
                for _ in range(_PORT_RETRIES):
                    if failure is None or all(ports.is_free_for_node(spec.port) for spec in self._missing(state)):
                        break
                    # Another program has taken a port before the server could bind the port.
                    state, moved = self._with_free_ports(state)
                    notices += moved
                    failure = self._start(self._missing(state), launched, deadline)
                if failure is not None:
                    raise failure
                self._join(self.specs(state), state, created, deadline)
                self._end_adoption(self.specs(state))
            except BaseException:
                stop_all(launched, timeout_seconds=5.0, insist=True)
                raise
            if created:
                write_state(self.data_dir, replace(state, created=True))
            return UpReport(self._url(state.ports), created, len(missing), tuple(notices))

    def down(self) -> list[str]:
        """Stop every server of the cluster; return the names of the servers that were running."""
        if not self.data_dir.is_dir():
            return []
        with locked(self.data_dir):
            state = read_state(self.data_dir)
            processes = self.processes(state) if state else []
            stop_all(processes, self.settings.stop_timeout_ms / 1000, insist=True)
            return [process.name for process in processes]

    def processes(self, state: ClusterState) -> list[ProcessRef]:
        """Return the processes of the servers that are running, in the order of their folders."""
        return [process for spec in self.specs(state) if (process := running(spec))]

    def is_running(self) -> bool:
        """Return whether any server of the cluster is running."""
        state = read_state(self.data_dir)
        return state is not None and bool(self.processes(state))

    def url(self) -> str:
        """Return the addresses of the running servers. Raises NotRunning if no server is running."""
        state = read_state(self.data_dir)
        if state is None or not state.created:
            raise NotRunning(f"no cluster in {str(self.data_dir)!r}: create it with `qa-cluster up`")
        found = [spec.port for spec in self.specs(state) if running(spec)]
        if not found:
            raise NotRunning(f"the cluster in {str(self.data_dir)!r} is not running: start it with `qa-cluster up`")
        return self._url(found)

    def _url(self, node_ports: Sequence[int]) -> str:
        scheme = "rediss" if server_tls(self.data_dir, self.settings) else "redis"
        return f"{scheme}://" + ",".join(f"{ports.HOST}:{port}" for port in node_ports)

    def specs(self, state: ClusterState) -> list[ServerSpec]:
        """Return the parameters of the servers of the cluster, in the order of their folders. The first `state.shards`
        servers were created as primaries.
        """
        settings = self.settings
        options = [*server_options(settings), *self._options]
        names = {name for name, _ in self._options}
        if "loadmodule" in names:
            options += model_cache_default(settings, self.data_dir)
            if "qa.bus-key-file" not in names:
                options.append(("qa.bus-key-file", str(bus_key_file(self.data_dir))))
        return [
            ServerSpec(
                self.data_dir / f"node-{index}",
                state.program,
                port,
                cluster=True,
                options=tuple(options),
                tethered=self._tethered,
                password=settings.cluster_password,
                replication_password=self._replication_password(),
                tls=server_tls(self.data_dir, settings),
            )
            for index, port in enumerate(state.ports)
        ]

    def _replication_password(self) -> str:
        if not self.settings.cluster_password:
            return ""
        return self.settings.replication_password or stored_password(replication_file(self.data_dir))

    def _prepare_running(self, state: ClusterState) -> None:
        """Create the replication user on the servers that are already running, because the servers that will be started
        log in as this user.

        Servers that an earlier version of qa-cluster started do not have this user.
        """
        password = self._replication_password()
        found = [spec for spec in self.specs(state) if password and running(spec)]
        try:
            for change in (allow_replication, use_replication_user):
                for spec in found:
                    with connect(spec) as client:
                        change(client, password)
        except redis.exceptions.RedisError as error:
            raise ClusterError(f"a running server refused the replication user: {error}") from error

    def _end_adoption(self, specs: Sequence[ServerSpec]) -> None:
        """Turn off the server setting `qa.adopt-registrations` on the servers that have it, because it is valid for one
        start only.
        """
        for spec in specs:
            if (ADOPT_SETTING, "yes") in spec.options:
                with connect(spec) as client:
                    client.config_set(ADOPT_SETTING, "no")

    def _missing(self, state: ClusterState) -> list[ServerSpec]:
        return [spec for spec in self.specs(state) if running(spec) is None]

    def _start(self, missing: Sequence[ServerSpec], launched: list[ProcessRef], deadline: float) -> ClusterError | None:
        """Start the servers `missing`, add their processes to `launched`, and wait until each server is ready or has
        failed. Return the first failure, or None.
        """
        before = len(launched)
        for spec in missing:
            launched.append(launch(spec))
        failure = None
        for spec, process in zip(missing, launched[before:], strict=True):
            try:
                wait_ready(spec, process, deadline)
            except ClusterError as error:
                failure = failure or error
        return failure

    def _prepare_new(self, unfinished: ClusterState | None) -> ClusterState:
        """Write and return the state of a new cluster. First stop the servers and remove the folders of `unfinished`,
        the state of an earlier creation that was not completed (None: there is no such state).
        """
        if unfinished is not None:
            specs = self.specs(unfinished)
            stop_all([process for spec in specs if (process := running(spec))], 5.0, insist=True)
            for spec in specs:
                if spec.directory.exists():
                    shutil.rmtree(spec.directory)
        settings = self.settings
        count = settings.shards * (1 + settings.replicas)
        state = ClusterState(
            shards=settings.shards,
            replicas=settings.replicas,
            ports=tuple(ports.node_ports_from(settings.first_port, count))
            if settings.first_port
            else tuple(ports.free_node_ports(count)),
            program=find_program(settings.server),
            created=False,
        )
        write_state(self.data_dir, state)
        return state

    def _check_shape(self, state: ClusterState) -> None:
        defaults = Settings()
        for name in ("shards", "replicas"):
            wanted, found = getattr(self.settings, name), getattr(state, name)
            if wanted not in (found, getattr(defaults, name)):
                grow = (
                    f", or add shards with `qa-cluster scale {wanted}`" if name == "shards" and wanted > found else ""
                )
                raise ConfigError(
                    f"setting {name!r} is {wanted}, but the cluster in {str(self.data_dir)!r} has {found}:"
                    f" unset it, choose another 'data_dir'{grow}"
                )
        first = self.settings.first_port
        if first and list(state.ports) != list(range(first, first + len(state.ports))):
            raise ConfigError(
                f"setting 'first_port' is {first}, but the cluster in {str(self.data_dir)!r} was created with the ports"
                f" {', '.join(map(str, state.ports))}: unset it, or choose another 'data_dir'"
            )

    def _with_free_ports(self, state: ClusterState) -> tuple[ClusterState, list[str]]:
        """Return the state with a new port for each stopped node whose port is in use, and notes about the new ports.
        Also write the state. With the setting `first_port`, raise ConfigError instead of choosing a new port.

        If the settings name a server program, or the program in the state is missing, also change the program.
        """
        if self.settings.server:
            state = replace(state, program=find_program(self.settings.server))
        elif not Path(state.program).is_file():
            state = replace(state, program=find_program(""))
        chosen = list(state.ports)
        notices = []
        for index, spec in enumerate(self.specs(state)):
            if running(spec) is None and not ports.is_free_for_node(spec.port):
                if self.settings.first_port:
                    ports.need_for_node(spec.port, self.settings.first_port)
                chosen[index] = ports.free_node_ports(1, avoid=chosen)[0]
                notices.append(
                    f"another program uses port {spec.port} or its bus port {spec.port + ports.BUS_OFFSET}:"
                    f" {spec.directory.name} now listens on port {chosen[index]}"
                )
        state = replace(state, ports=tuple(chosen))
        write_state(self.data_dir, state)
        return state, notices

    def _join(self, specs: Sequence[ServerSpec], state: ClusterState, create: bool, deadline: float) -> None:
        with ExitStack() as stack:
            servers = {Address(ports.HOST, spec.port): stack.enter_context(connect(spec)) for spec in specs}
            try:
                if create:
                    self._step("creating the cluster")
                    formation.create(servers, state.shards, deadline)
                else:
                    self._step("waiting until the servers have found each other")
                    formation.introduce(servers, deadline)
                    formation.wait_whole(list(servers.values()), len(servers), deadline)
            except redis.exceptions.RedisError as error:
                raise ClusterError(f"a server failed while the cluster was formed: {error}") from error


def start_servers(settings: Settings, on_step: OnStep, on_notice: OnStep, *, tethered: bool = False) -> str:
    """Start the local cluster with the module, and return its address. `on_notice` receives notes for the user."""
    cluster = LocalCluster(settings, options=module_options(settings), tethered=tethered, on_step=on_step)
    report = cluster.up()
    for text in report.notices:
        on_notice(text)
    return report.url


def with_local_password(settings: Settings) -> Settings:
    """Return the settings with the password of the local cluster.

    A new cluster gets a generated password. A cluster that was created without a password stays without one. Settings
    that name a cluster elsewhere, or that already have a password, are returned unchanged.
    """
    if settings.cluster_url or settings.cluster_password:
        return settings
    folder = data_folder(settings)
    with locked(folder):
        # another command may have generated the password after this command has read the settings
        password = stored_password(folder / PASSWORD_FILE)
        if not password and not _is_created(folder):
            password = make_password(folder)
    return replace(settings, cluster_password=password)


def without_password(settings: Settings) -> Settings:
    """Return the settings without a password, for a local cluster that has no password or does not exist yet.

    Raises ConfigError if the cluster is not local or has a password, or if the settings have a password that the user
    chose.
    """
    if settings.cluster_url:
        raise ConfigError(
            "`up --no-password` is only for a local cluster: unset 'cluster_url'. Servers elsewhere keep the password"
            " with which they were started."
        )
    folder = data_folder(settings)
    file = folder / PASSWORD_FILE
    if settings.cluster_password and settings.cluster_password != stored_password(file):
        raise ConfigError("setting 'cluster_password' contradicts --no-password: unset it, or leave out --no-password")
    with locked(folder):
        if file.exists() and _is_created(folder):
            raise ConfigError(
                f"the cluster in {str(folder)!r} has a password: to remove it, run `qa-cluster down`, delete the file"
                f" {str(file)!r}, and run `qa-cluster up`; the data is kept"
            )
        file.unlink(missing_ok=True)
    return replace(settings, cluster_password="")


def _is_created(folder: Path) -> bool:
    state = read_state(folder)
    return state is not None and state.created


def with_password(settings: Settings) -> Settings:
    """Return the settings with the generated password of the local cluster. If it is missing, generate it.

    Raises ConfigError if the cluster is not local, if the settings have a password that the user chose, or if servers
    are running without a password.
    """
    if settings.cluster_url:
        raise ConfigError(
            "a password is only generated for a local cluster: set 'cluster_password' to the password of the cluster in"
            " 'cluster_url', and leave out --generate-password"
        )
    folder = data_folder(settings)
    if settings.cluster_password:
        if settings.cluster_password != stored_password(folder / PASSWORD_FILE):
            raise ConfigError("setting 'cluster_password' is already set: unset it to generate a password")
        return settings
    with locked(folder):
        if LocalCluster(settings).is_running():
            raise ConfigError(
                f"the cluster in {str(folder)!r} is running without a password: to add one, run `qa-cluster down` and"
                " then `qa-cluster up --generate-password`; the data is kept"
            )
        password = stored_password(folder / PASSWORD_FILE) or make_password(folder)
    return replace(settings, cluster_password=password)


def with_tls(settings: Settings) -> Settings:
    """Return the settings with the certificates of the local cluster. If the cluster has no folder for certificates,
    create the folder and the certificates.

    If the setting `cluster_tls_ca` names a different authority, the settings stay unchanged.

    Raises ConfigError, without any change, if the cluster is not local, if servers are running without TLS, if the
    server program has no TLS, if `openssl` is missing, or if a file in an existing folder is missing.
    """
    if settings.cluster_url:
        raise ConfigError(
            "`up --tls` is only for a local cluster: unset 'cluster_url', or run servers with your own certificates"
            " (`qa-cluster node`, settings 'server_tls_cert', 'server_tls_key' and 'cluster_tls_ca')"
        )
    folder = data_folder(settings)
    if not tls_folder(folder).exists():
        state = read_state(folder)
        need_tls(find_program(settings.server) if settings.server or state is None else state.program)
    with locked(folder):
        if not tls_folder(folder).exists():
            if LocalCluster(settings).is_running():
                raise ConfigError(
                    f"the cluster in {str(folder)!r} is running without TLS: to add TLS, run `qa-cluster down` and then"
                    " `qa-cluster up --tls`; the data is kept"
                )
            make_certificates(folder)
    need_files(folder, settings)
    own = settings.cluster_tls_ca and settings.cluster_tls_ca != str(client_tls_files(folder).get("cluster_tls_ca"))
    files = {} if own else {name: str(file) for name, file in client_tls_files(folder).items()}
    return replace(settings, **files)  # type: ignore[arg-type]


def cluster_url(settings: Settings) -> str:
    """Return the address of the cluster: the setting `cluster_url` or, if it is empty, the address of the local
    cluster. Raises NotRunning if the local cluster is not running.
    """
    return settings.cluster_url or LocalCluster(settings).url()


def with_cluster(settings: Settings) -> Settings:
    """Return the settings with the address of the cluster (see `cluster_url`) in the setting `cluster_url`."""
    return replace(settings, cluster_url=cluster_url(settings))
