"""`qa-cluster config`: shows every setting with its value and source."""

from __future__ import annotations

from typing import Annotated

import typer

from qa_cluster.config import SETTINGS, LoadedSettings, expected

from ..servers.module_options import module_options
from ..servers.server_process import quoted
from ..terminal import console, tables
from .shared_options import Json, load_settings


def config(
    context: typer.Context,
    json: Json = False,
    module: Annotated[
        bool, typer.Option("--module", help="Print the lines of a server configuration that load the native module.")
    ] = False,
) -> None:
    """Show every setting with its value and source. Secrets are masked.

    The sources are, from lowest to highest priority: the default, qa-cluster.toml (or the file in --config or
    QA_CONFIG), the environment (QA_SHARDS=5), and the command line (--set shards=5).

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


def _row(loaded: LoadedSettings, name: str) -> dict[str, str]:
    row = SETTINGS[name]
    return {
        "value": loaded.shown(name),
        "source": loaded.sources[name],
        "unit": row.unit,
        "expected": expected(row),
        "help": row.help,
    }
