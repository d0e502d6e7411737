"""Where the reader is that comes with the package; commands that only need its place load nothing to run it."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def bundled_reader() -> Path:
    """The folder of the reader that comes with the package."""
    return Path(str(files("qa_cluster.models"))) / "default"
