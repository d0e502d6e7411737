"""User functions in a backup: the source of each script that has registered functions with `RG.PYEXECUTE`.

A *session* is such a script with its *registrations*: the functions that it has registered. The shards store a function
as bytecode of one Python version, with the classes of one qa-cluster version. So a backup has the source instead. A
restore runs the script again, but ignores its `run()`. The backup omits the values of globals, and the functions that
other functions have registered. If a single registration of a session was unregistered before the backup, the restore
registers it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import redis

from qa_cluster.shard_functions import SESSION

from ..nodes.node import command
from ..provision.inspection import pairs

_PAUSED = "PAUSED"


@dataclass(frozen=True, slots=True)
class StoredFunctions:
    """A session of user functions.

    Attributes:
        paused: for each registration, in the order in which the shard lists them, whether it was paused. Only
            registrations on streams can be paused.
    """

    id: str
    description: str
    source: str
    requirements: tuple[str, ...]
    paused: tuple[bool, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object that becomes the line of this session in the backup."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        """Read an object that `to_dict` returned. Raises ValueError if the object is invalid."""
        try:
            texts = [value.pop(name) for name in ("id", "description", "source")]
            requirements, paused = tuple(value.pop("requirements")), tuple(value.pop("paused"))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a session of functions: {error}") from error
        if value or not all(isinstance(text, str) for text in (*texts, *requirements)):
            raise ValueError("not a session of functions: it has unknown fields, or a field that is not a text")
        identity, description, source = texts
        return cls(identity, description, source, requirements, paused)

    def same_as(self, other: Self) -> bool:
        """Return whether both sessions have the same script, description and requirements."""
        return (self.source, self.description, self.requirements) == (
            other.source,
            other.description,
            other.requirements,
        )


def sessions_on(client: redis.Redis) -> dict[str, tuple[StoredFunctions, tuple[str, ...]]]:
    """Return the sessions of user functions on a shard, by session id. Each value is a pair: the session, and the ids
    of its registrations in the order of `StoredFunctions.paused`. Sessions without registrations are left out.
    """
    found = {}
    for row in command(client, "RG.PYDUMPSESSIONS", "VERBOSE", "SOURCES"):
        session = pairs(row)
        registrations = [pairs(entry) for entry in session["registrations"] if isinstance(entry, dict | list)]
        if session["ID"] == SESSION or not registrations:
            continue
        paused = tuple(pairs(entry["RegistrationData"]).get("status") == _PAUSED for entry in registrations)
        stored = StoredFunctions(
            session["ID"],
            session["sessionDescription"] or "",
            session["source"],
            tuple(str(pairs(entry)["Name"]) for entry in session["requirements"]),
            paused,
        )
        found[stored.id] = stored, tuple(str(entry["id"]) for entry in registrations)
    return found


def register(client: redis.Redis, stored: StoredFunctions, *, upgrade: bool) -> str:
    """Run the script of a session under its id. With `upgrade`, replace the session with this id in the cluster.

    Returns:
        The reason why the session was not restored completely, as text, or an empty string if it was.
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
    registered = sessions_on(client).get(stored.id)
    count = len(registered[1]) if registered is not None else 0
    if registered is None or count != len(stored.paused):
        paused = sum(stored.paused)
        return (
            f"its script registered {count} functions, but the backup has {len(stored.paused)}: some were unregistered,"
            " or registered by other functions"
            + (f". Paused in the backup: {paused}. To pause them again, use RG.PAUSEREGISTRATIONS" if paused else "")
        )
    pause(client, stored, *registered)
    return ""


def pause(client: redis.Redis, stored: StoredFunctions, present: StoredFunctions, ids: Sequence[str]) -> None:
    """Pause the registrations of `present` that are paused in the backup but not in the cluster.

    `ids` are the ids of all registrations of `present`.
    """
    # If some registrations were unregistered since the backup, it is unknown which entry of `stored.paused` belongs to
    # which of the remaining registrations.
    if len(ids) != len(stored.paused):
        return
    pairs = zip(ids, stored.paused, present.paused, strict=True)
    if pausing := [name for name, wanted, paused in pairs if wanted and not paused]:
        command(client, "RG.PAUSEREGISTRATIONS", *pausing)
