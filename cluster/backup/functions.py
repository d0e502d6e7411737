"""The functions that the users of a cluster have registered: their scripts, as `RG.PYEXECUTE` got them.

A function is stored on the shards as bytecode of one Python with the classes of one version, so a backup has its source
instead, and a restored session runs it again, without its `run()`. What functions have added while they ran, and the
values of their globals, are not in it. Registrations that were unregistered one by one come back with their session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import redis

from qa_cluster.shard_functions import SESSION

from ..nodes.node import command

_PAUSED = "PAUSED"


@dataclass(frozen=True, slots=True)
class StoredFunctions:
    """A session.

    Attributes:
        paused: for each of its registrations, in their order, whether it was paused; only those on streams can be.
    """

    id: str
    description: str
    source: str
    requirements: tuple[str, ...]
    paused: tuple[bool, ...]

    def to_dict(self) -> dict[str, Any]:
        """The line of the backup."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        """Read what `to_dict` makes; ValueError if it is not that."""
        try:
            texts = [value.pop(name) for name in ("id", "description", "source")]
            requirements, paused = tuple(value.pop("requirements")), tuple(value.pop("paused"))
        except (KeyError, TypeError) as error:
            raise ValueError(f"no session: {error}") from error
        if value or not all(isinstance(text, str) for text in (*texts, *requirements)):
            raise ValueError("no session")
        identity, description, source = texts
        return cls(identity, description, source, requirements, paused)

    def same_as(self, other: Self) -> bool:
        """Whether it is made of the same script."""
        return (self.source, self.description, self.requirements) == (
            other.source,
            other.description,
            other.requirements,
        )


def sessions_on(client: redis.Redis) -> dict[str, tuple[StoredFunctions, tuple[str, ...]]]:
    """The sessions of users on a shard by their ids, each with the ids of its registrations."""
    found = {}
    for row in _plain(command(client, "RG.PYDUMPSESSIONS", "VERBOSE", "SOURCES")):
        session = _pairs(row)
        registrations = [_pairs(entry) for entry in session["registrations"] if isinstance(entry, dict | list)]
        if session["ID"] == SESSION or not registrations:
            continue
        paused = tuple(_pairs(entry["RegistrationData"]).get("status") == _PAUSED for entry in registrations)
        stored = StoredFunctions(
            session["ID"],
            session["sessionDescription"] or "",
            session["source"],
            tuple(str(_pairs(entry)["Name"]) for entry in session["requirements"]),
            paused,
        )
        found[stored.id] = stored, tuple(str(entry["id"]) for entry in registrations)
    return found


def register(client: redis.Redis, stored: StoredFunctions, *, upgrade: bool) -> str:
    """Run the script of a session under its id, in place of the one that is there with `upgrade`.

    It returns what went wrong, empty if all is as it was.
    """
    words: list[str] = [stored.source, "NO_RUN", "ID", stored.id, *(["UPGRADE"] if upgrade else [])]
    words += ["DESCRIPTION", stored.description] if stored.description else []
    words += ["REQUIREMENTS", *stored.requirements] if stored.requirements else []
    try:
        reply = command(client, "RG.PYEXECUTE", *words)
    except redis.exceptions.ResponseError as error:
        return str(error)
    if reply not in (b"OK", "OK"):
        return f"its script replied {str(reply)[:300]}"
    made = sessions_on(client).get(stored.id)
    count = len(made[1]) if made is not None else 0
    if made is None or count != len(stored.paused):
        return (
            f"its script has registered {count} functions, there were {len(stored.paused)}: some were unregistered,"
            " or added by functions"
        )
    pause(client, stored, *made)
    return ""


def pause(client: redis.Redis, stored: StoredFunctions, present: StoredFunctions, ids: Sequence[str]) -> None:
    """Pause what is paused in the backup and runs in the cluster, where `present` has the registrations `ids`."""
    if len(ids) != len(stored.paused):  # some were unregistered since: nobody knows which is which
        return
    pairs = zip(ids, stored.paused, present.paused, strict=True)
    if pausing := [name for name, wanted, paused in pairs if wanted and not paused]:
        command(client, "RG.PAUSEREGISTRATIONS", *pausing)


def _plain(value: Any) -> Any:
    """A reply with text in place of bytes."""
    if isinstance(value, dict):
        return {_plain(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def _pairs(row: Any) -> dict[str, Any]:
    return row if isinstance(row, dict) else dict(zip(row[::2], row[1::2], strict=True))
