"""The folders of the bundled models; this module does not load a runtime."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def bundled_reader() -> Path:
    """The folder of the reader that is bundled with the package."""
    return Path(str(files("qa_cluster.models"))) / "default"


def bundled_encoder() -> Path:
    """The folder of the encoder that is bundled with the package."""
    return Path(str(files("qa_cluster.models"))) / "encoder"
