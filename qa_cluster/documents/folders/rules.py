"""Decides which files of a folder are left out.

These are hidden files, generated folders, files that git ignores, and files that match the user's patterns.

Patterns have the form of `.gitignore`, with the folder as their root. As in git:

- The last pattern that matches decides.
- The `.gitignore` of a subfolder has priority over the `.gitignore` files of its parent folders.
- A pattern cannot include a file of a folder that is left out.

If the folder is in a git checkout, the `.gitignore` files of its parent folders, up to the root of the checkout, also
count, unless one of these files would leave out the folder itself. In this case, no `.gitignore` file of a parent
folder counts, because the user has asked for this folder.

>>> rules = FolderRules(exclude=("drafts/",))
>>> rules.reason("drafts/a.md", is_folder=False), rules.reason("node_modules", is_folder=True) == GENERATED
('an --exclude pattern matches it', True)
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from copy import copy
from pathlib import Path

from pathspec import GitIgnoreSpec

from qa_cluster.errors import InvalidInput

from ..unicode import name_of
from .tracked_files import TrackedFiles

# Folders that programs generate. Their files look like documents by name, but are copies, templates or packages.
GENERATED_FOLDERS = ("_build", "_sources", "_static", "_templates", "node_modules")
GITIGNORE = ".gitignore"

# Why a file is left out.
HIDDEN = "its name starts with a dot"
GENERATED = "a folder that is left out by default"
IGNORED = "a .gitignore file names it"
EXCLUDED = "an --exclude pattern matches it"
UNTRACKED = "git does not track it"
NOT_INCLUDED = "no --include pattern matches it"
OTHER_KIND = "its name is not a document's name"

# Patterns may come from other users, so these constants limit the time to match one pattern and all patterns.
MAX_GITIGNORE_BYTES = 64 * 1024
MAX_STARS_IN_NAME = 3
MAX_STARS = 6
MAX_MATCHING_SECONDS = 60.0
_STARS = re.compile(r"\*+")


class FolderRules:
    """The rules for one folder and its subfolders.

    Args:
        include: patterns of the files to read. Without patterns, a file need not match any pattern.
        exclude: patterns of files and folders to leave out.
        tracked: whether to read only the files that git tracks.
        ignore: whether to leave out generated folders and the files that `.gitignore` files name.
    """

    def __init__(
        self, include: Iterable[str] = (), exclude: Iterable[str] = (), *, ignore: bool = True, tracked: bool = False
    ) -> None:
        self._include = _option(list(include), "--include")
        self._exclude = _option(list(exclude), "--exclude")
        self._ignore = ignore
        self._only_tracked = tracked
        self._tracked: TrackedFiles | None = None
        self._above: list[tuple[str, GitIgnoreSpec]] = []
        self._within: dict[str, GitIgnoreSpec] = {}
        self._spent_seconds = 0.0

    def start(self, folder: Path) -> FolderRules:
        """Return the same rules for `folder`, with the `.gitignore` files of its parent folders in the checkout."""
        rules = copy(self)
        rules._tracked = TrackedFiles.of(folder) if self._only_tracked else None
        rules._above = _above(Path(os.path.realpath(folder))) if self._ignore else []
        rules._within = {}
        rules._spent_seconds = 0.0
        return rules

    @property
    def reads_gitignore(self) -> bool:
        """Whether the caller must pass the `.gitignore` file of each folder to `add_gitignore`."""
        return self._ignore

    @property
    def has_include(self) -> bool:
        """Whether the user gave patterns of files to read."""
        return self._include is not None

    def add_gitignore(self, within: str, text: str, shown: str) -> None:
        """Add the patterns of a `.gitignore` file. InvalidInput if a pattern is wrong or too complex.

        Args:
            within: the path, within the folder of these rules, of the subfolder with the file; empty for the folder
                itself.
            text: the text of the file.
            shown: the path of the file in errors.
        """
        found = _spec(text.splitlines(), shown)
        if found is not None:
            self._within[within] = found

    def reason(self, path: str, *, is_folder: bool) -> str:
        """Return the reason why a path within the folder is left out; empty if no rule leaves it out.

        Ask about a folder before its files: for a file, this method does not check whether a parent folder is hidden or
        generated.
        """
        name = path.rpartition("/")[2]
        if name.startswith("."):
            return HIDDEN
        shown = f"{path}/" if is_folder else path
        if self._exclude is not None and self._exclude.match_file(shown):
            return EXCLUDED
        if self._ignore and is_folder and name in GENERATED_FOLDERS:
            return GENERATED
        if self._ignore and self._is_ignored_in_time(shown):
            return IGNORED
        if self._tracked is not None and not self._tracked.has(path, is_folder=is_folder):
            return UNTRACKED
        is_wanted = is_folder or self._include is None or self._include.match_file(path)
        return "" if is_wanted else NOT_INCLUDED

    def _is_ignored_in_time(self, path: str) -> bool:
        begun = time.thread_time()
        found = self._is_ignored(path)
        self._spent_seconds += time.thread_time() - begun
        if self._spent_seconds > MAX_MATCHING_SECONDS:
            raise InvalidInput(
                f"the patterns of the .gitignore files take more than {MAX_MATCHING_SECONDS:g} s: use --no-ignore"
            )
        return found

    def _is_ignored(self, path: str) -> bool:
        for below, spec in self._deepest_first(path):
            if (found := spec.check_file(below).include) is not None:
                return found
        return False

    def _deepest_first(self, path: str) -> Iterator[tuple[str, GitIgnoreSpec]]:
        """Yield a relative path and patterns for each `.gitignore` file that applies to `path`.

        The relative path is `path` relative to the folder of the `.gitignore` file. The deepest folder comes first.
        """
        parents = path.rstrip("/").split("/")[:-1]
        for depth in range(len(parents), -1, -1):
            within = "/".join(parents[:depth])
            if (spec := self._within.get(within)) is not None:
                yield path[len(within) + 1 :] if within else path, spec
        for prefix, spec in reversed(self._above):
            yield prefix + path, spec


def _option(patterns: list[str], option: str) -> GitIgnoreSpec | None:
    """Return the patterns of an option such as ``--include``; None if it has no patterns.

    InvalidInput if a value is not a pattern.
    """
    for pattern in patterns:
        if "\n" in pattern or _spec([pattern], option) is None:
            raise InvalidInput(f"{option} {pattern!r} is not a pattern")
    return _spec(patterns, option)


def _spec(lines: list[str], where: str) -> GitIgnoreSpec | None:
    """Compile lines into patterns; None if no line is a pattern.

    If a pattern is wrong or too complex, raise InvalidInput. The error names `where`: the file or option that has the
    lines.
    """
    for number, line in enumerate(lines, 1):
        most = max((len(_STARS.findall(name)) for name in line.split("/")), default=0)
        if most > MAX_STARS_IN_NAME or len(_STARS.findall(line)) > MAX_STARS:
            raise InvalidInput(
                f"{where}: pattern {number}, {line[:100]!r}, has too many stars: the limits are {MAX_STARS_IN_NAME} in"
                f" a name and {MAX_STARS} in a pattern"
            )
    try:
        spec = GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise InvalidInput(f"{where}: not a pattern: {error}") from error
    return spec if any(pattern.include is not None for pattern in spec.patterns) else None


def _above(folder: Path) -> list[tuple[str, GitIgnoreSpec]]:
    """Return the patterns of the `.gitignore` files from the checkout's root down to the folder's parent.

    The patterns of each file come with the path of the folder relative to that file, with a slash at its end.
    """
    root = next((above for above in (folder, *folder.parents) if (above / ".git").exists()), None)
    if root is None or root == folder:
        return []
    found: list[tuple[str, GitIgnoreSpec]] = []
    steps = folder.relative_to(root).parts
    for depth in range(len(steps)):
        at = root.joinpath(*steps[:depth])
        file = at / GITIGNORE
        if file.is_file() and not file.is_symlink():
            spec = _spec(_read(file).splitlines(), name_of(file))
            if spec is not None:
                found.append(("/".join(steps[depth:]) + "/", spec))
    return [] if _names_folder(found) else found


def _names_folder(found: list[tuple[str, GitIgnoreSpec]]) -> bool:
    """Return whether the patterns match the folder itself, or a parent folder in the checkout.

    `found` has the patterns in the form that `_above` returns: each with the path of the folder relative to its file.
    """
    for prefix, spec in found:
        seen = prefix.rstrip("/").split("/")
        if any(spec.check_file("/".join(seen[: depth + 1]) + "/").include for depth in range(len(seen))):
            return True
    return False


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_GITIGNORE_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"{name_of(file)}: cannot be read: {error.strerror}: use --no-ignore") from error
    if len(data) > MAX_GITIGNORE_BYTES:
        raise InvalidInput(f"{name_of(file)}: has more than {MAX_GITIGNORE_BYTES} bytes, the limit: use --no-ignore")
    return os.fsdecode(data)
