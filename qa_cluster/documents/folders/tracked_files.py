"""Lists the files of a folder that git tracks.

The folder may come from another user, and the configuration of a checkout can name programs (`core.fsmonitor` and
hooks). So git runs with these programs turned off, and git itself refuses a checkout of another owner.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from qa_cluster.errors import InvalidInput
from qa_cluster.security.passwords import without_passwords

from ..unicode import name_of

MAX_SECONDS = 60.0
_NO_PROGRAMS = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "--no-optional-locks")


@dataclass(frozen=True, slots=True)
class TrackedFiles:
    """The files that git tracks and the folders that contain them, as paths within a folder."""

    files: frozenset[str]
    folders: frozenset[str]

    @classmethod
    def of(cls, folder: Path) -> TrackedFiles:
        """Return the tracked files of a folder; InvalidInput if the folder is in no checkout, or if git fails."""
        command = ("git", *_NO_PROGRAMS, "-C", str(folder.absolute()), "ls-files", "-z", "--cached")
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                check=False,
                timeout=MAX_SECONDS,
                stdin=subprocess.DEVNULL,
                env=without_passwords(os.environ) | {"LC_ALL": "C"},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InvalidInput(f"{name_of(folder)}: git cannot list its files: {error}") from error
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0][:200]
            raise InvalidInput(f"{name_of(folder)}: git cannot list its files: {said}")
        files = frozenset(os.fsdecode(path) for path in done.stdout.split(b"\0") if path)
        folders: set[str] = set()
        for file in files:
            above = file.rpartition("/")[0]
            while above and above not in folders:
                folders.add(above)
                above = above.rpartition("/")[0]
        return cls(files, frozenset(folders))

    def has(self, path: str, *, is_folder: bool) -> bool:
        """Return whether git tracks a file, or any file in a folder."""
        return path in (self.folders if is_folder else self.files)
