"""Files of another user, for tests of files that must not be trusted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

STRANGER = 65_533


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives a file to another user. Without that right, it patches the id of the current user instead."""
    if os.geteuid() == 0:
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
