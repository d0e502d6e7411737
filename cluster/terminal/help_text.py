"""Makes help texts from docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from rich.markup import escape


def help_of(command: Callable[..., object]) -> str:
    """Return the docstring of a command as its help: each paragraph is one line, which the terminal wraps.

    Brackets are escaped, so that Rich does not read ``[PATH]`` as markup.

    >>> def up() -> None:
    ...     '''Start it. It stays
    ...     until `down`.
    ...
    ...         qa-cluster up
    ...     '''
    >>> help_of(up)
    'Start it. It stays until `down`.\\n\\n    qa-cluster up'
    """
    paragraphs = escape(inspect.getdoc(command) or "").split("\n\n")
    lines = [text if text.startswith(" ") else " ".join(text.split()) for text in paragraphs]
    if len(lines) > 2 and all(text.startswith(" ") for text in lines[2:]):
        lines[2] = f"[b][/b]{lines[2]}"  # typer removes an indentation that all paragraphs after the second share
    return "\n\n".join(lines)
