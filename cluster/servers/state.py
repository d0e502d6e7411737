"""The stored state of a local cluster, and the lock that allows one command at a time to change the cluster."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError, ConfigError
from qa_cluster.security.local_password import PASSWORD_FILE, STATE_FILE
from qa_cluster.security.ownership import objection

LOCK_FILE = "lock"
BUS_KEY_FILE = "bus.key"
REPLICATION_FILE = "replication.password"
_FORMAT = 1


@dataclass(frozen=True)
class ClusterState:
    """A local cluster: the number of its shards, the number of replicas of each shard, the ports of its nodes, and the
    path of its server program. The node with the first port has the folder ``node-0``.

    `created` becomes true when the servers have formed a cluster. Before that, there is no data to keep.
    """

    shards: int
    replicas: int
    ports: tuple[int, ...]
    program: str
    created: bool


def data_folder(settings: Settings) -> Path:
    """Return the full path of the data folder of the local cluster and its background jobs. The folder may be missing.

    Files in the data folder decide which programs run and which functions the servers load. The default data folder is
    in the current folder and was not chosen by the user. So this function raises ConfigError if another user owns the
    default data folder or may write to it.
    """
    folder = settings.data_dir.expanduser()
    if folder == Settings().data_dir and folder.exists() and (reason := objection(folder)) is not None:
        raise ConfigError(
            f"the data folder {str(folder.absolute())!r} {reason}: its files decide which programs run, so the command"
            f" does not use it by default. If you trust it, name it with --data-dir {folder.absolute()} or QA_DATA_DIR;"
            " otherwise, choose another folder"
        )
    return folder.resolve()


def read_state(data_dir: Path) -> ClusterState | None:
    """Return the state in `data_dir`; None if there is no state file. A cluster whose creation was not completed has a
    state file, too. Raises ClusterError if the file cannot be read.
    """
    path = data_dir / STATE_FILE
    try:
        document = json.loads(path.read_text("utf-8"))
        if document["format"] != _FORMAT:
            raise ClusterError(
                f"{str(path)!r} has format {document['format']!r}, but this version reads format {_FORMAT}: use the"
                " version of qa-cluster that created the folder, or another folder"
            )
        return ClusterState(
            shards=int(document["shards"]),
            replicas=int(document["replicas"]),
            ports=tuple(int(port) for port in document["ports"]),
            program=str(document["program"]),
            created=bool(document["created"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"cannot read {str(path)!r}: {error!r}; to start with a new cluster, remove the folder"
        ) from error


def write_state(data_dir: Path, state: ClusterState) -> None:
    """Replace the state file in `data_dir`, atomically."""
    path = data_dir / STATE_FILE
    fresh = path.with_suffix(".new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(json.dumps({"format": _FORMAT, **asdict(state)}, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def bus_key_file(data_dir: Path) -> Path:
    """Return the path of the file with the key that signs the messages between the servers of a local cluster. Create
    the file if it is missing.

    Only this user can read it. Running servers read the key again when the file changes.
    """
    path = data_dir / BUS_KEY_FILE
    if not path.exists():
        _write_secret(path)
    return path


def replication_file(data_dir: Path) -> Path:
    """Return the path of the file with the password of the replication user of a local cluster. Create the file if it
    is missing.
    """
    path = data_dir / REPLICATION_FILE
    if not path.exists():
        _write_secret(path)
    return path


def make_password(data_dir: Path) -> str:
    """Generate the password of the local cluster, write the password to a file in `data_dir` that only this user can
    read, and return the password.
    """
    return _write_secret(data_dir / PASSWORD_FILE)


def _write_secret(path: Path) -> str:
    """Write 256 random bits in hexadecimal digits to a file, atomically, and return the digits."""
    secret = secrets.token_hex(32)
    fresh = path.with_suffix(".new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        file.write(secret + "\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    return secret


@contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Hold the lock of the data folder while the context is open. Create the folder if it is missing.

    Raises ClusterError if another command holds the lock. Raises ConfigError if the folder or the lock file cannot be
    written.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The servers do not inherit the descriptor, so the lock ends with this process.
        descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(
            f"setting 'data_dir' is {str(data_dir)!r}, which cannot be written: {error.strerror}; choose another folder"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ClusterError(
                f"another qa-cluster command is changing the cluster in {str(data_dir)!r}: wait until it has ended"
            ) from error
        yield
    finally:
        os.close(descriptor)
