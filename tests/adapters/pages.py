"""Runs the programs of an adapter's page in `docs/integrations/` against a running service."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from tests.docs.blocks import ROOT, blocks


def programs(name: str) -> list[str]:
    """The Python blocks of a page."""
    page = f"integrations/{name}.md"
    return [block.text for block in blocks(page, (ROOT / "docs" / page).read_text()) if block.info == "python"]


def run_page(name: str, url: str) -> str:
    """Run the blocks of a page in order in one namespace, and return their output."""
    found = programs(name)
    assert found, f"docs/integrations/{name}.md has no program"
    printed = io.StringIO()
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(printed):
        for program in found:
            exec(
                compile(program.replace("http://127.0.0.1:8080", url), f"docs/integrations/{name}.md", "exec"),
                namespace,
            )
    return printed.getvalue()
