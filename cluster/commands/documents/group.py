"""The subcommands of `qa-cluster documents`."""

from __future__ import annotations

from ...terminal.late_commands import Late, late_group

_COMMANDS = {
    "list": Late(f"{__package__}.list", "list_documents"),
    **{name: Late(f"{__package__}.{name}", name) for name in ("show", "count", "delete")},
}

documents = late_group(
    _COMMANDS,
    "List, count, show and delete the stored documents.",
)
