"""The subcommands of `qa-cluster keys`."""

from __future__ import annotations

from ...terminal.late_commands import Late, late_group

_COMMANDS = {
    "create": Late(f"{__package__}.create", "create"),
    "import": Late(f"{__package__}.importing", "import_keys"),
    "list": Late(f"{__package__}.list", "list_keys"),
    "revoke": Late(f"{__package__}.revoke", "revoke"),
    "clear": Late(f"{__package__}.clear", "clear"),
}

keys = late_group(
    _COMMANDS,
    "Create, import, list and revoke the API keys of the REST service. Once there is one, no request gets in without.",
)
