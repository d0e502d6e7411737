"""The subcommands of `qa-cluster model`."""

from __future__ import annotations

from ...terminal.lazy_commands import PASSED_ON, LazyCommand, lazy_group

_COMMANDS = {
    **{
        name: LazyCommand(f"{__package__}.programs", name, PASSED_ON)
        for name in ("mine", "train", "export", "evaluate")
    },
    **{name: LazyCommand(f"{__package__}.{name}", name) for name in ("card", "load", "use", "unload", "bench")},
    "list": LazyCommand(f"{__package__}.list", "list_readers"),
}

model = lazy_group(
    _COMMANDS,
    "Train, export and measure readers, load them on the shards, and set the default reader.",
)
