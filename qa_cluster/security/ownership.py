"""Checks whether only the user (or root) could have written a file or folder.

qa-cluster runs programs that some files name, such as the settings file in the working directory, and finds these files
by itself. In a shared folder, or in a checkout of another user, the user has not chosen the files. So qa-cluster uses
only files that no other user could have written. Git (`safe.directory`) and ssh (`StrictModes`) make similar checks.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

_ROOT = 0


def objection(path: Path, *, others_may_add: bool = False) -> str | None:
    """Return the reason why another user may have written `path`; None if only this user or root could.

    A file is safe if it belongs to this user or to root and no other user may write it. Its group may write it if the
    group is the private group that many systems give each user. With `others_may_add`, a folder in which others can
    only add names (mode 1777, as /tmp) is safe, too. For a link, the link and its target are checked. `path` must
    exist.

    >>> objection(Path("/")) is None
    True
    """
    link, found = path.lstat(), path.stat()
    for status in (link, found):
        if status.st_uid not in (os.geteuid(), _ROOT):
            return f"belongs to {_user(status.st_uid)}, not to {_user(os.geteuid())}"
    if others_may_add and found.st_mode & stat.S_ISVTX:
        return None
    if found.st_mode & stat.S_IWOTH:
        return "may be written by every user"
    if found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid, found.st_uid):
        return f"may be written by group {_group(found.st_gid)}"
    return None


def _is_private(group: int, user: int) -> bool:
    """Return whether a group is the private group of a user: it has the user's name and no other member."""
    try:
        entry, owner = grp.getgrgid(group), pwd.getpwuid(user).pw_name
    except KeyError:
        return False
    return entry.gr_name == owner and not set(entry.gr_mem) - {owner}


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
