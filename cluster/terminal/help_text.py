"""Makes help texts from docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from rich.markup import escape


def help_of(command: Callable[..., object]) -> str:
    """The docstring of a command, with each paragraph in one line, so that only the terminal breaks the lines.

    Brackets are text, as in ``qa-cluster[sources]``, and no markup of Rich.

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
    made = [text if text.startswith(" ") else " ".join(text.split()) for text in paragraphs]
    if len(made) > 2 and all(text.startswith(" ") for text in made[2:]):
        made[2] = f"[b][/b]{made[2]}"  # typer takes away an indentation that all paragraphs after the second have
    return "\n\n".join(made)
