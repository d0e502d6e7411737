"""Reads the training record in the folder of a checkpoint."""

import json
from pathlib import Path

from qa_cluster.errors import InvalidInput

RECORD_FILE = "training.json"
"""The file in the folder of a checkpoint that says how it was trained."""


def knows_titles(folder: Path) -> bool:
    """Return whether a checkpoint was trained on passages with title and section. Return False if the folder has no
    record.

    Raises InvalidInput if the record cannot be read.
    """
    record = folder / RECORD_FILE
    if not record.is_file():
        return False
    try:
        settings = json.loads(record.read_text(encoding="utf-8"))["settings"]
        return float(settings.get("title_share", 0)) > 0
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"cannot read {str(record)!r}: {type(error).__name__}: {error}") from error
