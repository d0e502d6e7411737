"""The folder of a backup: it gets its name when all of it is on the disk, and is checked before anything is restored.

Until then its files are in a folder beside it whose name begins with a dot. A command that was killed leaves that
behind; the next backup of the same name removes it. The process that writes it holds a lock on it. An earlier backup
is set aside under such a name, too, between the two renames that put another one in its place; if that was interrupted,
it gets its name back. A backup that is being restored is locked, too, and takes no other's place meanwhile: a restore
would go on with files of the other one.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from qa_cluster.errors import ConfigError

from .lines import HashedFile, LinesWriter, without
from .manifest import MANIFEST_FILE, BackupManifest, DamagedBackup, FileEntry, NoBackup, is_of_backup

_PIECE = 1 << 20
_FOLDER_MODE = 0o700
_UNFINISHED, _REPLACED = "unfinished", "replaced"
_IN_USE = "{!r} is being restored just now: name another folder, or repeat the command when that has ended"


class BackupFolder:
    """A backup while it is written. `files` has the entries of those that are finished."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: dict[str, FileEntry] = {}
        self._open: dict[str, LinesWriter] = {}

    def lines(self, name: str) -> LinesWriter:
        """A new file of JSON lines; `close` finishes it."""
        writer = self._open[name] = LinesWriter(self._place(name))
        return writer

    def close(self, name: str, dead: frozenset[int] | set[int] = frozenset()) -> FileEntry:
        """Finish a file of lines, and leave out the lines of these numbers; one without lines goes."""
        writer = self._open.pop(name)
        try:
            entry = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        if dead:
            entry = without(writer.path, dead)
        if entry.lines:
            self.files[name] = entry
        else:
            writer.path.unlink()
        return entry

    def store(self, name: str, data: bytes) -> None:
        """A file of its own; one that is there stays."""
        if name in self.files:
            return
        file = HashedFile(self._place(name))
        try:
            file.write(memoryview(data))
            self.files[name] = file.finish()
        except BaseException:
            file.abandon()
            raise

    def abandon(self) -> None:
        """Close what is open."""
        for writer in self._open.values():
            writer.abandon()
        self._open.clear()

    def _place(self, name: str) -> Path:
        path = self.path / name
        path.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        return path


@contextmanager
def new_backup(target: Path, *, force: bool = False) -> Iterator[tuple[BackupFolder, Callable[[BackupManifest], Path]]]:
    """A folder to write to, and a function that ends it: from then on the backup is at `target`.

    Without that call, and after an error, nothing is left. `force` lets it take the place of an earlier backup.
    ConfigError if `target` is something else.
    """
    place = target.resolve()
    if place.parent.is_dir():
        _tidy(place)
    check_target(place, force=force)
    # The name is known before the folder is there: an interrupt may come between its making and the next line.
    path = _beside(place, _UNFINISHED)
    folder = BackupFolder(path)

    def finish(manifest: BackupManifest) -> Path:
        folder.store(MANIFEST_FILE, manifest.to_json())
        for below in [*(found for found in path.rglob("*") if found.is_dir()), path]:
            _sync(below)
        check_target(place, force=force)
        _take_place(path, place)
        return place

    try:
        path.mkdir(_FOLDER_MODE)
        with _locked(path, fcntl.LOCK_EX) as free:
            if not free:  # another command's `_tidy` came between the two lines
                raise ConfigError(f"another backup to {str(place)!r} began at the same moment: repeat the command")
            yield folder, finish
    finally:
        folder.abandon()
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def reading(backup: Path) -> Iterator[None]:
    """Keep others from replacing a backup; ConfigError if it is being replaced just now."""
    with _locked(backup, fcntl.LOCK_SH) as free:
        if not free:
            raise ConfigError(f"the backup {str(backup)!r} is being replaced by another one: repeat the command")
        yield


@contextmanager
def _locked(folder: Path, how: int) -> Iterator[bool]:
    """A lock on a folder; whether nobody else's stands against it. File systems without locks have none."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, how | fcntl.LOCK_NB)
            here, there = os.fstat(handle), folder.stat()
            free = (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)  # it was not renamed meanwhile
        except (BlockingIOError, FileNotFoundError):
            free = False
        except OSError:
            free = True
        yield free
    finally:
        os.close(handle)


def check_target(place: Path, *, force: bool) -> None:
    """Raise ConfigError unless a backup may be written to this folder."""
    if not place.parent.is_dir():
        raise ConfigError(f"{str(place.parent)!r} is no folder: make it first, {place.name!r} is made in it")
    if not place.exists():
        return
    if not place.is_dir():
        raise ConfigError(f"{str(place)!r} is no folder")
    if place.is_mount() or place.parent == place:
        raise ConfigError(f"{str(place)!r} is where a file system begins: name a folder within it")
    if not any(place.iterdir()):
        return
    if not force:
        raise ConfigError(f"{str(place)!r} is not empty: name another folder, or replace the backup there with --force")
    try:
        BackupManifest.load(place)
    except NoBackup as error:
        raise ConfigError(f"{error}; --force replaces earlier backups only") from error
    except DamagedBackup as error:
        if not is_of_backup(place / MANIFEST_FILE):  # manifest.json is a common name, a reader's too
            raise ConfigError(
                f"{str(place)!r} has a {MANIFEST_FILE} that is not that of a backup; --force replaces earlier backups"
                " only: name another folder"
            ) from error
    with _locked(place, fcntl.LOCK_EX) as free:
        if not free:
            raise ConfigError(_IN_USE.format(str(place)))


def _take_place(path: Path, place: Path) -> None:
    if not place.exists():
        path.rename(place)
        _sync(place.parent)
        return
    with _locked(place, fcntl.LOCK_EX) as free:
        if not free:
            raise ConfigError(_IN_USE.format(str(place)))
        former = _beside(place, _REPLACED)
        try:
            place.rename(former)
            path.rename(place)
        except BaseException:
            if former.exists() and not place.exists():
                former.rename(place)
            raise
        _sync(place.parent)
        shutil.rmtree(former, ignore_errors=True)


def _hidden(place: Path, what: str) -> str:
    return f".{place.name}.{what}-"


def _beside(place: Path, what: str) -> Path:
    return place.parent / f"{_hidden(place, what)}{secrets.token_hex(8)}"


def _tidy(place: Path) -> None:
    """Remove what a killed command has left beside a backup of this name; others may be writing one."""
    for left in [path for path in place.parent.iterdir() if path.name.startswith(_hidden(place, _REPLACED))]:
        if not place.exists() and (left / MANIFEST_FILE).exists():
            left.rename(place)
        elif place.exists():
            shutil.rmtree(left, ignore_errors=True)
    for left in [path for path in place.parent.iterdir() if path.name.startswith(_hidden(place, _UNFINISHED))]:
        try:
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(left, ignore_errors=True)
        finally:
            os.close(lock)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def verify(folder: Path, manifest: BackupManifest, on_progress: Callable[[int], None] = lambda done: None) -> None:
    """Compare every file with its entry; DamagedBackup names the first that differs. Progress is in bytes."""
    done = 0
    for name, entry in sorted(manifest.files.items()):
        path = folder / name
        try:
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise DamagedBackup(path, "is no file")
                if status.st_size != entry.bytes:
                    raise DamagedBackup(path, f"damaged, it has {status.st_size} bytes, {entry.bytes} were written")
                digest = sha256()
                while piece := file.read(_PIECE):
                    digest.update(piece)
                    done += len(piece)
                    on_progress(done)
        except FileNotFoundError as error:
            raise DamagedBackup(path, "missing") from error
        except OSError as error:
            raise DamagedBackup(path, f"cannot be read: {error.strerror}") from error
        if digest.hexdigest() != entry.sha256:
            raise DamagedBackup(path, "damaged, its SHA-256 is not that of the file that was written")
