"""The command `qa-cluster`: the options that all subcommands share, and the exit code of each kind of error."""

from __future__ import annotations

import sys
from typing import Annotated

import redis
import typer

from qa_cluster import __version__
from qa_cluster.errors import CannotWrite, CapacityError, ClusterError, ConfigError, NoWorker, QAError, WorkerLost
from qa_cluster.security.passwords import hide_typed_passwords

from .commands.shared_options import SharedOptions, file_option, text_option
from .terminal import console
from .terminal.lazy_commands import PASSED_ON, LazyCommand, group_of

OK, FAILURE, USAGE, NOT_RUNNING, OVERLOADED = 0, 1, 2, 3, 4

_HELP = """
Question answering inside a Redis or Valkey Cluster.

Start here: [bold]qa-cluster demo[/bold] starts three shards, ingests the Python language reference and answers
questions about it.

With your own text:

    qa-cluster up                  start a local cluster

    qa-cluster ingest articles/    store text, Markdown, HTML, PDF and other files

    qa-cluster ask "Who ...?"      ask a question

    qa-cluster serve               run the REST service and its web page

    qa-cluster down                stop the cluster; its data stays in .qa-cluster
"""
_EPILOG = (
    "You can write these options before or after the command. You can also give every setting in the environment"
    " (QA_<NAME>) or in qa-cluster.toml; `qa-cluster config` lists all settings.\n\n"
    "Exit codes: 0 done, 1 failed, 2 wrong usage or setting, 3 not running or not reachable, 4 overloaded or timed out,"
    " 130 interrupted (Ctrl-C)."
)
# Shared options with a value. Users may write these options before or after the subcommand.
_CLUSTER_TLS = ("--cluster-tls-ca", "--cluster-tls-cert", "--cluster-tls-key")
_SHARED_WITH_VALUE = ("--config", "--data-dir", "--cluster-url", *_CLUSTER_TLS, "--log-level", "--set")

_COMMANDS = {
    name: LazyCommand(f"{__package__}.commands.{name}", name)
    for name in ("demo", "up", "down", "scale", "status", "ingest", "prepare", "ask", "search", "serve", "mcp")
} | {
    # the former name of `prepare`
    "pretokenize": LazyCommand(f"{__package__}.commands.prepare", "prepare"),
    "questions": LazyCommand(f"{__package__}.commands.groups.questions", "questions"),
    "eval": LazyCommand(f"{__package__}.commands.measuring.eval", "evaluate"),
    "bench": LazyCommand(f"{__package__}.commands.measuring.bench", "bench", PASSED_ON),
    "node": LazyCommand(f"{__package__}.commands.hosts.node", "node"),
    "check": LazyCommand(f"{__package__}.commands.hosts.check", "check"),
    "config": LazyCommand(f"{__package__}.commands.config", "config"),
    "backup": LazyCommand(f"{__package__}.commands.backups.backup", "backup"),
    "restore": LazyCommand(f"{__package__}.commands.backups.restore", "restore"),
    **{
        name: LazyCommand(f"{__package__}.commands.groups", f"{name}_group")
        for name in ("model", "documents", "keys", "collections", "jobs", "pins", "synonyms", "kafka")
    },
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
    config: Annotated[str | None, file_option("Read settings from this TOML file.")] = None,
    data_dir: Annotated[str | None, text_option("FOLDER", "Folder of the local cluster.")] = None,
    cluster_url: Annotated[
        str | None,
        text_option("URL", "Address of an existing cluster: redis://host:port, or rediss://host:port for TLS."),
    ] = None,
    cluster_tls_ca: Annotated[
        str | None, file_option("Certificate of the authority that signed the cluster's certificates (PEM).")
    ] = None,
    cluster_tls_cert: Annotated[str | None, file_option("Client certificate for the cluster (PEM).")] = None,
    cluster_tls_key: Annotated[str | None, file_option("Private key of the client certificate (PEM).")] = None,
    log_level: Annotated[str | None, text_option("LEVEL", "Log level: debug, info, warning or error.")] = None,
    set: Annotated[list[str] | None, text_option("NAME=VALUE", "Set any setting; repeatable.")] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    del version  # _version has handled it
    flags = {}
    for text in set or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--set")
        flags[name.strip().replace("-", "_")] = value
    named = {
        "data_dir": data_dir,
        "cluster_url": cluster_url,
        "cluster_tls_ca": cluster_tls_ca,
        "cluster_tls_cert": cluster_tls_cert,
        "cluster_tls_key": cluster_tls_key,
        "log_level": log_level,
    }
    flags |= {name: value for name, value in named.items() if value is not None}
    context.obj = SharedOptions(config, flags)


def exit_code(error: BaseException) -> int:
    """Return the exit code with which `qa-cluster` ends after this error."""
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
    """Return the words of the command line with the shared options and their values at the front. The word ``--`` and
    the words after it stay in place.

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
    """Run `qa-cluster` with the command line of this process. After an error, print the error, and exit with its exit
    code.
    """
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
