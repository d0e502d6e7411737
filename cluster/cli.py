"""The command `qa-cluster`: it declares the options of all commands and chooses the exit code of each kind of error."""

from __future__ import annotations

import sys
from typing import Annotated

import redis
import typer

from qa_cluster import __version__
from qa_cluster.errors import CannotWrite, CapacityError, ClusterError, ConfigError, NoWorker, QAError, WorkerLost
from qa_cluster.security.passwords import hide_typed_passwords

from .commands.shared_options import SharedOptions
from .terminal import console
from .terminal.late_commands import PASSED_ON, Late, group_of

OK, FAILURE, USAGE, NOT_RUNNING, OVERLOADED = 0, 1, 2, 3, 4

_HELP = """
Question answering inside a Redis or Valkey Cluster.

Start here: [bold]qa-cluster demo[/bold] runs three shards, reads the Python language reference and answers questions.

With your own text:

    qa-cluster up                  start a local cluster

    qa-cluster ingest articles/    read .txt, .md, .jsonl, SQuAD and CORD-19 files

    qa-cluster ask "Who ...?"      ask a question

    qa-cluster serve               the REST service, with a page to ask from

    qa-cluster down                stop the cluster; its data stays in .qa-cluster
"""
_EPILOG = (
    "The options above may stand before or after the command. Every setting can also come from QA_<NAME> in the"
    " environment or from qa-cluster.toml; `qa-cluster config` shows all of them.\n\n"
    "Exit codes: 0 done, 1 failed, 2 wrong usage or setting, 3 not running or not reachable, 4 overloaded or timed out,"
    " 130 interrupted (Ctrl-C)."
)
# Options of the command itself that take a value; users may write them after the subcommand too.
_CLUSTER_TLS = ("--cluster-tls-ca", "--cluster-tls-cert", "--cluster-tls-key")
_SHARED_WITH_VALUE = ("--config", "--data-dir", "--cluster-url", *_CLUSTER_TLS, "--log-level", "--set")

_COMMANDS = {
    name: Late(f"{__package__}.commands.{name}", name)
    for name in ("demo", "up", "down", "scale", "status", "ingest", "pretokenize", "ask", "search", "serve")
} | {
    "eval": Late(f"{__package__}.commands.eval", "evaluate"),
    "bench": Late(f"{__package__}.commands.bench", "bench", PASSED_ON),
    "node": Late(f"{__package__}.commands.hosts.node", "node"),
    "check": Late(f"{__package__}.commands.hosts.check", "check"),
    "config": Late(f"{__package__}.commands.config", "config"),
    "backup": Late(f"{__package__}.commands.backups.backup", "backup"),
    "restore": Late(f"{__package__}.commands.backups.restore", "restore"),
    "model": Late(f"{__package__}.commands.model.group", "model"),
    "documents": Late(f"{__package__}.commands.documents.group", "documents"),
    "keys": Late(f"{__package__}.commands.keys.group", "keys"),
    "collections": Late(f"{__package__}.commands.collections.group", "collections"),
}

app = typer.Typer(
    cls=group_of(_COMMANDS),
    help=_HELP,
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        console.say(f"qa-cluster {__version__}")
        raise typer.Exit


@app.callback()
def _options(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    config: Annotated[
        str | None, typer.Option(help="Settings file (TOML).", metavar="FILE", show_default=False)
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder of the local cluster.", metavar="FOLDER", show_default=False)
    ] = None,
    cluster_url: Annotated[
        str | None,
        typer.Option(
            help="An existing cluster: redis://host:port, or rediss://host:port with TLS.",
            metavar="URL",
            show_default=False,
        ),
    ] = None,
    cluster_tls_ca: Annotated[
        str | None,
        typer.Option(
            help="The authority that signed the cluster's certificates (PEM).", metavar="FILE", show_default=False
        ),
    ] = None,
    cluster_tls_cert: Annotated[
        str | None, typer.Option(help="Client certificate for the cluster (PEM).", metavar="FILE", show_default=False)
    ] = None,
    cluster_tls_key: Annotated[
        str | None, typer.Option(help="Key of the client certificate (PEM).", metavar="FILE", show_default=False)
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error.", metavar="LEVEL", show_default=False)
    ] = None,
    set: Annotated[
        list[str] | None, typer.Option(help="Any setting; can be repeated.", metavar="NAME=VALUE", show_default=False)
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    del version  # its callback has handled it
    flags = {}
    for text in set or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE")
        flags[name.strip().replace("-", "_")] = value
    named = {"data_dir": data_dir, "cluster_url": cluster_url, "log_level": log_level}
    named |= {
        "cluster_tls_ca": cluster_tls_ca,
        "cluster_tls_cert": cluster_tls_cert,
        "cluster_tls_key": cluster_tls_key,
    }
    flags |= {name: value for name, value in named.items() if value is not None}
    context.obj = SharedOptions(config, flags)


def exit_code(error: BaseException) -> int:
    """The exit code of the process for an error."""
    if isinstance(error, ConfigError):
        return USAGE
    if isinstance(error, CannotWrite):
        return FAILURE
    if isinstance(error, CapacityError | redis.exceptions.TimeoutError):
        return OVERLOADED
    if isinstance(error, ClusterError | NoWorker | WorkerLost | redis.exceptions.ConnectionError):
        return NOT_RUNNING
    return FAILURE


def shared_first(arguments: list[str]) -> list[str]:
    """The command line with the options of all commands moved to the front; words after ``--`` stay in place.

    >>> shared_first(["up", "--data-dir", "x", "--shards", "5"])
    ['--data-dir', 'x', 'up', '--shards', '5']
    """
    front: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            return [*front, *rest, word, *words]
        if word in _SHARED_WITH_VALUE:
            front += [word, *([value] if (value := next(words, None)) is not None else [])]
        elif word.startswith(tuple(f"{name}=" for name in _SHARED_WITH_VALUE)):
            front.append(word)
        else:
            rest.append(word)
    return [*front, *rest]


def main() -> None:
    """Entry point of the command."""
    hide_typed_passwords()
    try:
        app(args=shared_first(sys.argv[1:]), prog_name="qa-cluster")
    except (QAError, redis.exceptions.RedisError, OSError) as error:
        console.error(_message(error))
        sys.exit(exit_code(error))


def _message(error: Exception) -> str:
    if isinstance(error, redis.exceptions.RedisError):
        return f"the cluster reported: {error}"
    return str(error) or type(error).__name__


if __name__ == "__main__":
    main()
