"""Files of another user, for tests of what may not be believed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

STRANGER = 65_533


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a file another user's, or, without the right to, makes this user another one as far as Python can see."""
    if os.geteuid() == 0:
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
