"""The folder of a backup. It gets its final name when the backup is complete on the disk.

Until then, the files are in a temporary folder next to the final path. The name of the temporary folder starts with a
dot. The process that writes the backup locks the temporary folder. If this process is killed, the temporary folder
stays. The next backup to the same path removes it.

Two renames replace an earlier backup. Between the renames, the earlier backup also has a temporary name. If the process
is killed between the renames, the next backup to the same path renames the earlier backup back. A backup that is being
restored is locked and cannot be replaced. Otherwise, the restore would continue with the files of a different backup.
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
_IN_USE = "{!r} is being restored: use another folder, or repeat the command when the restore has ended"


class BackupFolder:
    """A backup that is being written to the temporary folder `path`. `files` has the entries of the completed files, by
    their names in the backup.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: dict[str, FileEntry] = {}
        self._open: dict[str, LinesWriter] = {}

    def lines(self, name: str) -> LinesWriter:
        """Start the file of JSON lines with this name, a path relative to the backup. Call `close` to complete the
        file.
        """
        writer = self._open[name] = LinesWriter(self._new_path(name))
        return writer

    def close(self, name: str, dead: frozenset[int] | set[int] = frozenset()) -> FileEntry:
        """Complete a file of lines, without the lines whose numbers (from 0) are in `dead`.

        If no line remains, remove the file.
        """
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
        """Write a file with these bytes, if this backup does not yet have a file with this name."""
        if name in self.files:
            return
        file = HashedFile(self._new_path(name))
        try:
            file.write(memoryview(data))
            self.files[name] = file.finish()
        except BaseException:
            file.abandon()
            raise

    def abandon(self) -> None:
        """Close all files that `lines` has started and that are not completed."""
        for writer in self._open.values():
            writer.abandon()
        self._open.clear()

    def _new_path(self, name: str) -> Path:
        path = self.path / name
        path.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        return path


@contextmanager
def new_backup(target: Path, *, force: bool = False) -> Iterator[tuple[BackupFolder, Callable[[BackupManifest], Path]]]:
    """Create a folder to write to; yield it, and a function that completes the backup and moves it to `target`.

    The function gets the manifest and returns the path of the backup. If the caller does not call the function, or an
    error occurs, nothing of the new backup is left on the disk. `target` must be missing or empty; with `force`, it may
    be an earlier backup. Raises ConfigError if `target` is anything else or is in use.
    """
    target = target.resolve()
    if target.parent.is_dir():
        _remove_leftovers(target)
    check_target(target, force=force)
    # The path is known before the folder exists. So an interrupt right after mkdir also removes the folder.
    path = _sibling(target, _UNFINISHED)
    folder = BackupFolder(path)

    def finish(manifest: BackupManifest) -> Path:
        folder.store(MANIFEST_FILE, manifest.to_json())
        for subfolder in [*(found for found in path.rglob("*") if found.is_dir()), path]:
            _sync(subfolder)
        check_target(target, force=force)
        _move_to_target(path, target)
        return target

    try:
        path.mkdir(_FOLDER_MODE)
        with _locked(path, fcntl.LOCK_EX) as free:
            if not free:  # `_remove_leftovers` of another command ran between `mkdir` and the lock
                raise ConfigError(f"another backup to {str(target)!r} started at the same moment: repeat the command")
            yield folder, finish
    finally:
        folder.abandon()
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def reading(backup: Path) -> Iterator[None]:
    """Prevent other commands from replacing a backup while the context is open. Raise ConfigError if another command is
    replacing the backup now.
    """
    with _locked(backup, fcntl.LOCK_SH) as free:
        if not free:
            raise ConfigError(f"another backup is replacing {str(backup)!r}: repeat the command")
        yield


@contextmanager
def _locked(folder: Path, how: int) -> Iterator[bool]:
    """Lock a folder while the context is open, and yield whether this process got the lock. `how` is LOCK_SH or
    LOCK_EX. The function does not wait for other processes. On a file system without locks, it always yields True.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, how | fcntl.LOCK_NB)
            # Another process may have replaced the folder before this process locked it. Then `free` is false.
            free = os.path.samestat(os.fstat(handle), folder.stat())
        except (BlockingIOError, FileNotFoundError):
            free = False
        except OSError:
            free = True
        yield free
    finally:
        os.close(handle)


def check_target(target: Path, *, force: bool) -> None:
    """Raise ConfigError if a backup must not be written to this folder.

    The parent folder must exist. `target` must be missing or empty. With `force`, `target` may also be a backup that is
    not in use.
    """
    if not target.parent.is_dir():
        raise ConfigError(f"{str(target.parent)!r} is not a folder: create it before the backup to {target.name!r}")
    if not target.exists():
        return
    if not target.is_dir():
        raise ConfigError(f"{str(target)!r} is not a folder: name a new or empty folder")
    if target.is_mount() or target.parent == target:
        raise ConfigError(f"{str(target)!r} is the root of a file system: name a folder in it")
    if not any(target.iterdir()):
        return
    if not force:
        raise ConfigError(
            f"{str(target)!r} is not empty: choose a different folder, or replace its backup with --force"
        )
    try:
        BackupManifest.load(target)
    except NoBackup as error:
        raise ConfigError(f"{error}; --force replaces only a backup: choose a different folder") from error
    except DamagedBackup as error:
        if not is_of_backup(target / MANIFEST_FILE):  # a reader has a manifest.json, too
            raise ConfigError(
                f"the {MANIFEST_FILE} in {str(target)!r} does not belong to a backup; --force replaces only a backup:"
                " choose a different folder"
            ) from error
    with _locked(target, fcntl.LOCK_EX) as free:
        if not free:
            raise ConfigError(_IN_USE.format(str(target)))


def _move_to_target(path: Path, target: Path) -> None:
    if not target.exists():
        path.rename(target)
        _sync(target.parent)
        return
    with _locked(target, fcntl.LOCK_EX) as free:
        if not free:
            raise ConfigError(_IN_USE.format(str(target)))
        former = _sibling(target, _REPLACED)
        try:
            target.rename(former)
            path.rename(target)
        except BaseException:
            if former.exists() and not target.exists():
                former.rename(target)
            raise
        _sync(target.parent)
        shutil.rmtree(former, ignore_errors=True)


def _hidden(target: Path, what: str) -> str:
    return f".{target.name}.{what}-"


def _sibling(target: Path, what: str) -> Path:
    return target.parent / f"{_hidden(target, what)}{secrets.token_hex(8)}"


def _remove_leftovers(target: Path) -> None:
    """Remove the temporary folders that killed backups to `target` have left next to it, or rename a replaced backup
    back.

    If `target` is missing because a backup was killed between its two renames, the replaced backup becomes `target`
    again. Folders that other commands are writing stay.
    """
    for left in [path for path in target.parent.iterdir() if path.name.startswith(_hidden(target, _REPLACED))]:
        if not target.exists() and (left / MANIFEST_FILE).exists():
            left.rename(target)
        elif target.exists():
            shutil.rmtree(left, ignore_errors=True)
    for left in [path for path in target.parent.iterdir() if path.name.startswith(_hidden(target, _UNFINISHED))]:
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
    """Compare the size and the SHA-256 of every file of a backup with its entry in the manifest.

    Raises DamagedBackup with the name of the first file that differs. `on_progress` receives the number of bytes that
    have been verified so far, in all files.
    """
    done = 0
    for name, entry in sorted(manifest.files.items()):
        path = folder / name
        try:
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise DamagedBackup(path, "is not a regular file")
                if status.st_size != entry.bytes:
                    raise DamagedBackup(path, f"damaged, it has {status.st_size} bytes, but {entry.bytes} were written")
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
            raise DamagedBackup(path, "damaged, its SHA-256 differs from the manifest")
