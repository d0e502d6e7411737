"""The subcommands of `qa-cluster model`."""

from __future__ import annotations

from ...terminal.late_commands import PASSED_ON, Late, late_group

_COMMANDS = {
    **{name: Late(f"{__package__}.{name}", name, PASSED_ON) for name in ("mine", "train", "export", "evaluate")},
    **{name: Late(f"{__package__}.{name}", name) for name in ("card", "load", "use", "unload", "bench")},
    "list": Late(f"{__package__}.list", "list_readers"),
}

model = late_group(
    _COMMANDS,
    "Train and export a reader, load it onto the shards, and choose which of the loaded ones answers.",
)
