"""Finds and opens users' files safely: only regular files, and only files inside the folder that the user names.

A folder may come from another user, and may change while it is read. So, without `follow_links`, each file in a folder
is opened one path component at a time, starting at the folder, and no component may be a symbolic link. The listing of
the folder resolves links:

- A link is read if its target is a file inside the user's folder or inside one of its subfolders.
- A link is left out if its target is outside the user's folder, is a hidden file, or is a folder.

With `follow_links`, all links are followed, even out of the folder. Each folder is read once, so loops end.

Paths that the user names are opened even if they are links. `folders` says which files of a folder are left out.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from qa_cluster.errors import InputTooLong, InvalidInput, RequestError

from .folders.rules import GITIGNORE, MAX_GITIGNORE_BYTES, OTHER_KIND, FolderRules
from .unicode import name_of

# The reasons why a file is left out, and a remark about links that were followed. The command line shows how many files
# have each reason.
LINK = "a link that leads out of the folder, to a hidden file, or to a folder"
FOLLOWED = "a link that was followed"
SPECIAL = "not a regular file but a pipe, a device or a socket"

# Opening a pipe must not wait for its other end, and opening a terminal must not make it the controlling terminal.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY
_READ = 1 << 20


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to read.

    Attributes:
        path: the path of the file, for messages and for the file's ending.
        name: the name of the file; for a file in a folder, its path within the folder. It is valid Unicode (`name_of`).
        folder: the folder that must contain the file; None for a file that the user named.
        within: the path of the file in that folder, without links.
    """

    path: Path
    name: str
    folder: Path | None = None
    within: str = ""

    @property
    def shown(self) -> str:
        """The path as it appears in messages; valid Unicode."""
        return name_of(self.path)

    @property
    def document_name(self) -> str:
        """The name of the file's document: the file's name without ``.gz``."""
        return without_gz(self.name)

    @property
    def size(self) -> int:
        """The size of the file in bytes; 0 if it is unknown."""
        try:
            return os.stat(self.path).st_size
        except OSError:
            return 0

    def read(self, limit: int, spare: int = 0) -> bytes:
        """Return the contents; InputTooLong if the file is larger than `limit` + `spare` bytes.

        The size is checked before the file is read. `spare` is for bytes that are not text, such as a byte order mark.
        The error names only `limit`.
        """
        with self.opened() as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit + spare:
                raise InputTooLong(f"{self.shown}: has {size} bytes, the limit is {limit}")
            parts, left = [], limit + spare + 1
            # Check the size again, because the file may grow, and files of /proc report a size of 0.
            while left > 0 and (part := file.read(min(left, _READ))):
                parts.append(part)
                left -= len(part)
            if left <= 0:
                raise InputTooLong(f"{self.shown}: has more than {limit} bytes, the limit for one file")
            return b"".join(parts)

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open the file; InvalidInput if it is not a regular file or cannot be read."""
        try:
            with os.fdopen(self._descriptor(), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise InvalidInput(f"{self.shown}: is not a regular file")
                yield file
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def _descriptor(self) -> int:
        if self.folder is None:
            # Opening a device can have side effects, so the kind of the file is checked first.
            if not stat.S_ISREG(os.stat(self.path).st_mode):
                raise InvalidInput(f"{self.shown}: is not a regular file")
            return os.open(self.path, _FLAGS)
        return _open_below(self.folder, self.within)


def _open_below(folder: Path, within: str) -> int:
    """Open the file with the path `within` in a folder, and return its descriptor.

    No link below the folder is followed: OSError if a component of `within` is a link.
    """
    *parents, name = within.split("/")
    at = os.open(folder, _FOLDER)
    try:
        for parent in parents:
            below = os.open(parent, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = below
        return os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=at)
    finally:
        os.close(at)


def _unreadable(file: Path, error: OSError) -> InvalidInput:
    try:
        link = f", it is a link to {os.readlink(file)!r}"
    except OSError:
        link = ""
    return InvalidInput(f"{name_of(file)}: cannot be read: {error.strerror}{link}")


def without_gz(name: str) -> str:
    """Return the name of a file without the ending ``.gz``.

    >>> without_gz("tool.1.gz")
    'tool.1'
    """
    return name[:-3] if name.lower().endswith(".gz") else name


def is_hidden(within: str) -> bool:
    """Return whether a path within a folder has a component that starts with a dot."""
    return any(part.startswith(".") for part in within.split("/"))


@dataclass
class FolderListing:
    """Lists the files of a folder and its subfolders, except files that the rules exclude.

    Attributes:
        folder: the folder.
        wanted: returns whether a file with this name is wanted.
        follow_links: whether all links are followed, even out of the folder.
        on_left_out: called with the path and the reason for each file and folder that is left out. If a subfolder is
            left out, the function is called once, with the path of the subfolder. The function is also called for each
            link that is followed, with the reason `FOLLOWED`.
        on_unlisted: called with the path, within `folder`, of each folder that cannot be listed, and with the error.
            The path of `folder` itself is empty.
        rules: the rules that say which files are left out.
    """

    folder: Path
    wanted: Callable[[str], bool]
    follow_links: bool
    on_left_out: Callable[[Path, str], None]
    on_unlisted: Callable[[str, InvalidInput], None]
    rules: FolderRules = field(default_factory=lambda: FolderRules(ignore=False))
    _real: str = field(init=False)
    _seen: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._real = os.path.realpath(self.folder)

    def files(self) -> list[SourceFile]:
        """Return the files that are wanted and not left out, sorted by their paths.

        A broken link is included if no rule leaves it out, so that reading the link reports the error.
        """
        found: list[SourceFile] = []
        # Follow links to folders last. A folder that is also found without a link then has the path without a link.
        folders, linked = deque([""]), deque[str]()
        while folders or linked:
            within = folders.popleft() if folders else linked.popleft()
            entries = self._entries(within)
            self._read_gitignore(within, entries)
            for entry in entries:
                path = f"{within}/{entry.name}" if within else entry.name
                is_folder = os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir(follow_symlinks=False)
                if reason := self.rules.reason(path, is_folder=is_folder):
                    self.on_left_out(self.folder / path, reason)
                elif entry.is_symlink():
                    found += self._link(path, linked)
                elif is_folder:
                    folders.append(path)
                elif not self.wanted(entry.name):
                    self.on_left_out(self.folder / path, OTHER_KIND)
                elif entry.is_file(follow_symlinks=False):
                    found.append(self._found(path, path))
                else:
                    self.on_left_out(self.folder / path, SPECIAL)
        return sorted(found, key=lambda file: file.path)

    def _read_gitignore(self, within: str, entries: list[os.DirEntry[str]]) -> None:
        if self.rules.reads_gitignore and any(
            entry.name == GITIGNORE and entry.is_file(follow_symlinks=False) for entry in entries
        ):
            path = f"{within}/{GITIGNORE}" if within else GITIGNORE
            file = self._found(path, path)
            try:
                data = file.read(MAX_GITIGNORE_BYTES)
            except RequestError as error:
                raise InvalidInput(f"{error}: use --no-ignore") from error
            self.rules.add_gitignore(within, os.fsdecode(data), file.shown)

    def _entries(self, within: str) -> list[os.DirEntry[str]]:
        path = self.folder / within
        try:
            about = path.stat()
            if (about.st_dev, about.st_ino) in self._seen:
                return []
            self._seen.add((about.st_dev, about.st_ino))
            with os.scandir(path) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            self.on_unlisted(within, InvalidInput(f"{name_of(path)}: cannot list this folder: {error.strerror}"))
            return []

    def _found(self, path: str, within: str) -> SourceFile:
        # A followed link may lead outside the folder, so the files below it are opened by their paths.
        folder = None if self.follow_links else self.folder
        return SourceFile(self.folder / path, name_of(path), folder, within)

    def _link(self, path: str, linked: deque[str]) -> list[SourceFile]:
        """Return the file that a link leads to, as a list; empty if the link is left out or leads to a folder.

        `path` is the path of the link within the folder. If the link leads to a folder and links are followed, `path`
        is appended to `linked`, the links to folders that are listed later.
        """
        file = self.folder / path
        target = os.path.realpath(file)
        if os.path.isdir(target):
            if self.follow_links:
                linked.append(path)
            self.on_left_out(file, FOLLOWED if self.follow_links else LINK)
            return []
        if not self.wanted(file.name):
            self.on_left_out(file, OTHER_KIND)
            return []
        if os.path.exists(target) and not os.path.isfile(target):
            self.on_left_out(file, SPECIAL)
            return []
        if self.follow_links:
            self.on_left_out(file, FOLLOWED)
            return [self._found(path, path)]
        within = os.path.relpath(target, self._real)
        if within == ".." or within.startswith("../") or is_hidden(within):
            self.on_left_out(file, LINK)
            return []
        return [self._found(path, within)]
