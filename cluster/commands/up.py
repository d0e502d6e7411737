"""`qa-cluster up`: starts the local cluster, or sets up a cluster that runs elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer

from qa_cluster.config import TLS_FOLDER, Settings
from qa_cluster.errors import ConfigError
from qa_cluster.security.local_password import PASSWORD_FILE
from qa_cluster.shard_functions import SESSION

from ..nodes.joining import join_servers
from ..provision.inspection import reindexing
from ..provision.provisioning import complete
from ..servers.local import start_servers, with_local_password, with_password, with_tls, without_password
from ..terminal import console
from .shared_options import ServerOption, audit_of, load_settings

_WITHOUT_TLS = (
    "the cluster bus has no authentication without TLS: on a machine with users that you do not trust, run `qa-cluster"
    " down` and `qa-cluster up --tls` (docs/operations.md)"
)


def up(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    shards: Annotated[
        int | None, typer.Option(help="Number of shards (primary servers) of a new cluster.", show_default="3")
    ] = None,
    replicas: Annotated[int | None, typer.Option(help="Number of replicas of each shard.", show_default="0")] = None,
    first_port: Annotated[
        int | None,
        typer.Option(
            help="Port of the first server of a new cluster; the other servers get the next ports.", show_default="free"
        ),
    ] = None,
    server: ServerOption = None,
    bare: Annotated[
        bool, typer.Option("--bare", help="Start servers with the module only, without a reader and functions.")
    ] = False,
    form: Annotated[
        bool,
        typer.Option("--form", help="First form one cluster from the servers in --cluster-url."),
    ] = False,
    generate_password: Annotated[
        bool | None,
        typer.Option(
            "--generate-password/--no-password",
            help="Whether the local cluster requires a password. The command generates it and keeps it in the data"
            " folder.",
            show_default="password for a new cluster, else unchanged",
        ),
    ] = None,
    tls: Annotated[
        bool,
        typer.Option(
            "--tls",
            help="Allow only TLS connections to the local cluster. The command generates the certificates and keeps"
            " them in the data folder.",
        ),
    ] = False,
) -> None:
    """Start the local cluster and set it up for questions. You can repeat it safely: it does only what is missing.

    The data folder (.qa-cluster) keeps the data across `down` and `up`. With --cluster-url, the command starts no
    server: it loads the reader and the functions into the cluster at this address. With --form, the address must list
    all servers that `qa-cluster node` has started, primaries first. Give the number of primaries with --shards, and the
    number of replicas of each primary with --replicas.

    The servers of a new local cluster require a password, because other users of the machine can reach them. The
    password is in the file `password` of the data folder, which only you can read; commands that use this folder find
    it there. --no-password starts a cluster without a password. --generate-password adds one to an existing cluster.

    With --tls, the servers accept only TLS connections from now on, from clients and from each other, and require a
    client certificate. All certificates are in the folder `tls` of the data folder, where the commands find them. The
    server program must be built with TLS.

    Examples:

        qa-cluster up

        qa-cluster up --shards 5 --replicas 1 --server /usr/bin/redis-server

        qa-cluster up --first-port 7000

        qa-cluster up --tls --server /usr/bin/redis-server

        qa-cluster up --cluster-url redis://db.example:7000

        qa-cluster up --form --cluster-url redis://a.example:7000,b.example:7000,c.example:7000
    """
    loaded = load_settings(context, shards=shards, replicas=replicas, first_port=first_port, server=server)
    settings, given = loaded.settings, loaded.sources["cluster_password"] != "default"
    audit = audit_of(context)
    url = settings.cluster_url
    if generate_password is False:
        settings = without_password(settings)
    elif generate_password:
        settings = with_password(settings)
    elif not given:  # an empty password in the settings also counts as given: it means no password
        settings = with_local_password(settings)
    if tls:
        settings = with_tls(settings)
    if form and not url:
        raise ConfigError(
            "`up --form` forms a cluster from servers that are already running: list all of them in setting"
            " 'cluster_url' (--cluster-url redis://host:port,host:port,..); to start a local cluster, leave out --form"
        )
    try:
        if form:
            join_servers(settings, console.step)
        local = not url
        url = url or start_servers(settings, console.step, console.notice)
        if local and not url.startswith("rediss://"):
            console.notice(_WITHOUT_TLS)
        if not bare:
            complete(settings, url, console.step)
            audit.note("functions.register", session=SESSION)
    except KeyboardInterrupt:
        console.notice(_interrupted(settings, bool(url)))
        raise
    console.say(f"the cluster is running at {url}")
    if not bare and (text := reindexing(settings, url)):
        console.notice(text)
    if generate_password or (settings.cluster_password and not given):
        console.say(
            f"the password is in {settings.data_dir / PASSWORD_FILE}; commands that use this folder find it there"
        )
    if tls:
        console.say(
            f"the certificates are in {settings.data_dir / TLS_FOLDER}; commands that use this folder find them there"
        )


def _interrupted(settings: Settings, started: bool) -> str:
    """Return a text for the user: the state in which an interrupted `up` leaves the cluster. `started` says whether the
    servers of the local cluster are running.
    """
    if settings.cluster_url:
        return "interrupted: the cluster is not completely set up; repeat the command to continue"
    if started:
        return (
            "interrupted: the servers are running, but cannot answer yet; `qa-cluster up` continues, `qa-cluster down`"
            " stops them"
        )
    return "interrupted: the servers that this command started were stopped again"
