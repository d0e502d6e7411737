"""The subcommands of `qa-cluster keys`."""

from __future__ import annotations

from ...terminal.lazy_commands import LazyCommand, lazy_group

_COMMANDS = {
    "create": LazyCommand(f"{__package__}.create", "create"),
    "import": LazyCommand(f"{__package__}.importing", "import_keys"),
    "list": LazyCommand(f"{__package__}.list", "list_keys"),
    "revoke": LazyCommand(f"{__package__}.revoke", "revoke"),
    "clear": LazyCommand(f"{__package__}.clear", "clear"),
}

keys = lazy_group(
    _COMMANDS,
    "Create, import, list and revoke the API keys of the REST service. Once a key exists, every request needs a key.",
)
