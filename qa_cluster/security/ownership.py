"""Whether a file or folder is one's own: only then may what lies in the current folder choose which programs run.

A user of a shared folder, or of a checkout of somebody else, has not chosen what lies there. What counts is who could
have written it, as for git (`safe.directory`) and ssh (`StrictModes`).
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

_ROOT = 0


def objection(path: Path, *, others_may_add: bool = False) -> str | None:
    """Why another user may have chosen what `path` holds; None if it is one's own.

    One's own is what belongs to this user or to root and what nobody else may write. The group may, if it is the
    private one that many systems give each user. With `others_may_add`, a folder in which others can only add names
    (mode 1777, as /tmp) is one's own too. A link is looked at itself and where it leads. `path` must exist.

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
        return "may be written by everybody"
    if found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid, found.st_uid):
        return f"may be written by group {_group(found.st_gid)}"
    return None


def _is_private(group: int, user: int) -> bool:
    """Whether a group is a user's own: it has the user's name and no other member."""
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
