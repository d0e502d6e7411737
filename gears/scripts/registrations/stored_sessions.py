"""Writes and reads sessions in the form for the module and for other shards.

A session is one cloudpickle of all its registrations, so that its functions share their globals after loading. For one
of qa-cluster's own functions, the cloudpickle contains only the function's name. Bytecode of a different Python version
or format version cannot be loaded. In this case, the stored source is executed again, and its `run()` is ignored.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle

from ...shard.failures import GearsError
from ...shard.messages import sent
from .script_source import remember_source, rerun
from .sessions import Registration, ScriptSession

logger = logging.getLogger(__name__)
# Increase this number after a change of the module, name or fields of a class in payloads.
FORMAT = 5
_PREFIX = f"{FORMAT} {sys.version_info.major}.{sys.version_info.minor}\n".encode()


@dataclass(frozen=True, slots=True)
class StoredRegistrations:
    """The registrations and the requirements of a session. A payload is the format version, the Python version, and
    then the cloudpickle of this object.
    """

    registrations: list[Registration]
    requirements: tuple[str, ...]


def dump(registrations: Iterable[Registration], requirements: tuple[str, ...] = ()) -> bytes:
    """Return the payload of a session with these registrations and requirements.

    Raises GearsError if a function cannot be pickled.
    """
    try:
        pickled: bytes = cloudpickle.dumps(StoredRegistrations(list(registrations), requirements))
    except Exception as error:  # pickling runs code of users' objects
        raise GearsError(f"Error occured when serialized a python callback: {error}") from error
    return _PREFIX + pickled


def load(payload: bytes) -> StoredRegistrations | None:
    """Return the registrations and requirements of a payload, or None if the source must be executed again.
    This is the case if the Python version or the format version is different, or if the payload uses a name that does
    not exist in this environment.
    """
    if not payload.startswith(_PREFIX):
        return None
    try:
        stored: StoredRegistrations = cloudpickle.loads(payload[len(_PREFIX) :])
    except (ImportError, AttributeError) as error:
        logger.warning("a stored session uses a missing name, so its source is executed again: %s", error)
        return None
    return stored


@sent
@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session in the form for storage and for other shards. `payload` is the result of `dump`."""

    id: str
    description: str
    script_source: str
    payload: bytes

    def restore(self, names: Mapping[str, Any]) -> ScriptSession:
        """Return the session with its functions. If they cannot be loaded, execute its source again with `names`."""
        remember_source(self.id, self.script_source)
        stored = load(self.payload)
        if stored is None:
            return rerun(self.id, self.description, self.script_source, names)
        registrations = {registration.id: registration for registration in stored.registrations}
        return ScriptSession(self.id, self.description, self.script_source, registrations, stored.requirements)

    def restricted_to(self, session: ScriptSession) -> StoredSession:
        """Return a copy with only the registrations that are in `session`. If these are all registrations, return self.

        If the payload cannot be loaded, the copy has the registrations of `session` itself, pickled again.
        """
        stored = load(self.payload)
        if stored is None:
            kept = list(session.registrations.values())
        else:
            kept = [registration for registration in stored.registrations if registration.id in session.registrations]
            if len(kept) == len(stored.registrations):
                return self
        return replace(self, payload=dump(kept, session.requirements))


def with_ids(session: ScriptSession, ids: list[str]) -> ScriptSession:
    """Return a copy of a restored session with only the registrations in the module, and with the module's ids.

    `ids` are the ids of the session's registrations in the module. If the source was executed again, its registrations
    have new ids. Then they get the module's ids, in the order of the script. In this case, GearsError is raised if the
    script does not have exactly as many registrations as the module.
    """
    found = session.registrations
    if not set(ids) <= found.keys():
        if len(ids) != len(found):
            raise GearsError(
                f"its source registers {len(found)} functions, but the module has {len(ids)}: run the script again"
            )
        found = {known: replace(made, id=known) for known, made in zip(ids, found.values(), strict=True)}
    return replace(session, registrations={known: found[known] for known in ids})


@sent
@dataclass(frozen=True, slots=True)
class Change:
    """A change of a shard: install the session `stored`, remove the session with the id `removed`, or both.

    For `stored` and `removed`, None means no session. The changes that a shard sends have increasing numbers. A change
    with the number 0 is applied on this shard and is not sent. A change may be sent twice, and must not undo later
    changes.
    If a change withdraws a version, `undone` has the registrations of this version, which are unregistered. The rest of
    such a change is skipped if a different version has replaced this version.
    """

    stored: StoredSession | None
    removed: str | None = None
    number: int = 0
    undone: tuple[str, ...] = ()
