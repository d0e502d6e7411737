"""The subcommands of `qa-cluster documents`."""

from __future__ import annotations

from ...terminal.lazy_commands import LazyCommand, lazy_group

_COMMANDS = {
    "list": LazyCommand(f"{__package__}.list", "list_documents"),
    **{name: LazyCommand(f"{__package__}.{name}", name) for name in ("show", "count", "delete")},
}

documents = lazy_group(
    _COMMANDS,
    "List, count, show and delete the stored documents.",
)
