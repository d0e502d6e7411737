"""`qa-cluster config`: shows every setting, its value and where it comes from."""

from __future__ import annotations

from typing import Annotated

import typer

from qa_cluster.config import SETTINGS, Loaded, expected

from ..servers.module_options import module_options
from ..servers.server_process import quoted
from ..terminal import console, tables
from .shared_options import load_settings


def config(
    context: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    module: Annotated[
        bool, typer.Option("--module", help="Print the server configuration lines that load the native module.")
    ] = False,
) -> None:
    """Show every setting, its value and where it comes from. Secrets are masked.

    A setting comes from its default, from qa-cluster.toml (or --config FILE, or QA_CONFIG), from the environment
    (QA_SHARDS=5) or from the command line (--set shards=5); the later one of these wins.

    Example: QA_HTTP_PORT=9000 qa-cluster config --json
    """
    loaded = load_settings(context)
    if module:
        for name, value in module_options(loaded.settings):
            console.say(f"{name} {value if name == 'loadmodule' else quoted(value)}")
    elif json:
        console.say_json({name: _row(loaded, name) for name in SETTINGS})
    else:
        rows = [{"setting": name, **_row(loaded, name)} for name in SETTINGS]
        tables.table([{k: v for k, v in row.items() if k in ("setting", "value", "source", "help")} for row in rows])


def _row(loaded: Loaded, name: str) -> dict[str, str]:
    row = SETTINGS[name]
    return {
        "value": loaded.shown(name),
        "source": loaded.sources[name],
        "unit": row.unit,
        "expected": expected(row),
        "help": row.help,
    }
