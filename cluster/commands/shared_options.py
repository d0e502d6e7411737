"""The options that commands share, the settings that follow from them, and the client that these make."""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from qa_cluster.access.audit import AuditLog
from qa_cluster.config import COVERAGES, Loaded, load
from qa_cluster.errors import InvalidInput
from qa_cluster.keys import check_collection

if TYPE_CHECKING:
    from qa_cluster.clients.cluster_client import ClusterClient

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FilterOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Only documents whose metadata satisfy this: name=value (or several values, with commas), !=, <, <=, >, "
        ">=; can be repeated.",
        metavar="CONDITION",
        show_default=False,
    ),
]


def collection_name(text: str) -> str:
    """The name of a collection; one that cannot be one is wrong usage."""
    try:
        return check_collection(text)
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from error


CollectionOption = Annotated[
    str,
    typer.Option(
        help="The collection of the documents (`qa-cluster collections list`).", parser=collection_name, metavar="NAME"
    ),
]


def coverage_name(text: str) -> str:
    """What to do while a shard is down; anything else is wrong usage."""
    if text not in COVERAGES:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(COVERAGES)}")
    return text


CoverageOption = Annotated[
    str,
    typer.Option(
        help="While a shard is down: partial asks the others, full refuses.",
        parser=coverage_name,
        metavar="partial|full",
    ),
]


@dataclass
class SharedOptions:
    """The options of `qa-cluster` itself: the settings file, and settings given as flags."""

    config: str | None = None
    flags: dict[str, str] = field(default_factory=dict)


def load_settings(context: typer.Context, **flags: object) -> Loaded:
    """All settings of this run; `flags` are the command's own options, None where not given."""
    shared: SharedOptions = context.obj
    given = {name: str(value) for name, value in flags.items() if value is not None}
    return load(shared.config, flags=shared.flags | given)


class Audit:
    """The audit log of a command: who runs it, and where."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def note(self, event: str, **what: object) -> None:
        """Log a change that has been made; names and numbers, no texts."""
        if self._log:
            self._log.note(event, {"user": _user()}, f"cli {socket.gethostname()}", **what)


def audit_of(context: typer.Context) -> Audit:
    """The audit log of the settings. A command asks for it first: a log that cannot be written is a ConfigError."""
    return Audit(AuditLog(load_settings(context).settings.audit_log))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())


def client_of(context: typer.Context) -> ClusterClient:
    """A client of the cluster, to be used in a `with` block."""
    # most commands do without, and would take longer to start
    from qa_cluster.clients.cluster_client import ClusterClient

    from ..servers.local import with_cluster

    return ClusterClient(with_cluster(load_settings(context).settings))
