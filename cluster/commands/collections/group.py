"""The subcommands of `qa-cluster collections`."""

from __future__ import annotations

from ...terminal.lazy_commands import LazyCommand, lazy_group

_COMMANDS = {
    "list": LazyCommand(f"{__package__}.list", "list_collections"),
    **{name: LazyCommand(f"{__package__}.{name}", name) for name in ("create", "count", "delete")},
}

collections = lazy_group(
    _COMMANDS,
    "List, create, count and delete collections of documents. A question searches one collection.",
)
