"""The subcommands of `qa-cluster collections`."""

from __future__ import annotations

from ...terminal.late_commands import Late, late_group

_COMMANDS = {
    "list": Late(f"{__package__}.list", "list_collections"),
    **{name: Late(f"{__package__}.{name}", name) for name in ("create", "count", "delete")},
}

collections = late_group(
    _COMMANDS,
    "List, create, count and delete collections of documents. Questions to one see nothing of the others.",
)
