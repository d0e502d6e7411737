"""`RG.PYDUMPSESSIONS` and `RG.PYDUMPREQS`: the sessions of a shard, how many objects use each session, and the
requirements of the sessions.
"""

from __future__ import annotations

import platform
from collections import Counter
from typing import Any

from ...shard.failures import GearsError
from ...shard.replies import decode_reply
from ..host.script_host import ScriptHost
from ..runs.history import ExecutionHistory
from .sessions import ScriptSession, SessionRegistry, session_of
from .timers import Timers


class SessionDump:
    """Describes sessions, and counts the registrations, executions and timers that use each session."""

    def __init__(self, host: ScriptHost, sessions: SessionRegistry, history: ExecutionHistory, timers: Timers) -> None:
        self._host = host
        self._sessions = sessions
        self._history = history
        self._timers = timers

    def dump(self, arguments: list[str]) -> list[Any]:
        """Return the reply of ``RG.PYDUMPSESSIONS [VERBOSE] [DEAD] [SOURCES] [SESSIONS s..]``.

        SESSIONS selects live and dead sessions by id; raise GearsError if an id is unknown. Without SESSIONS, the reply
        has all live sessions, or, with DEAD, the replaced or unregistered sessions that an execution or a timer still
        uses. VERBOSE shows registrations and requirements in full. SOURCES adds the scripts; the module allows
        SOURCES only to administrators.
        """
        verbose, dead, sources, names = _parse(arguments)
        users = self._users()
        sessions = [*self._sessions.all(), *users]
        unique = {id(session): session for session in sessions}.values()
        wanted = [session for session in unique if session.id in names or (not names and session.dead == dead)]
        missing = names - {session.id for session in wanted}
        if missing:
            raise GearsError(f"ERR session does not exists: {min(missing)}")
        registrations = self._registrations() if verbose else {}
        return [
            [
                *self._describe(session, users.count(session), registrations, verbose),
                *(("source", session.script_source) if sources else ()),
            ]
            for session in wanted
        ]

    def requirements(self) -> list[Any]:
        """Return the reply of ``RG.PYDUMPREQS``: each requirement with the number of live sessions that have it."""
        sessions = {id(session): session for session in (*self._sessions.all(), *self._users())}.values()
        counts = Counter(name for session in sessions if not session.dead for name in set(session.requirements))
        return [_requirement(name, count) for name, count in sorted(counts.items())]

    def _users(self) -> list[ScriptSession]:
        """Return the session of each unfinished execution and of each timer. The same session may occur several
        times.
        """
        running = (session_of(execution) for execution in self._history.all() if not execution.finished)
        return [session for session in running if session is not None] + self._timers.sessions()

    def _describe(self, session: ScriptSession, used: int, registrations: dict[str, Any], verbose: bool) -> list[Any]:
        listed = self._sessions.get(session.id) is session
        linked = "None" if session.dead else "primary" if listed else "temprary"
        names = list(session.registrations)
        return [
            *("ID", session.id),
            *("sessionDescription", session.description or None),
            *("refCount", len(names) + used),
            *("linked", linked),
            *("dead", int(session.dead)),
            *("requirementInstallationNeeded", 0),
            *("requirements", [_requirement(name) if verbose else name for name in session.requirements]),
            *("registrations", [registrations.get(name, name) for name in names] if verbose else names),
        ]

    def _registrations(self) -> dict[str, Any]:
        """Return the entries of `RG.DUMPREGISTRATIONS` by the id of the registration."""
        entries = decode_reply(self._host.execute_own("RG.DUMPREGISTRATIONS"))
        return {dict(zip(entry[::2], entry[1::2], strict=True))["id"]: entry for entry in entries}


def _parse(arguments: list[str]) -> tuple[bool, bool, bool, set[str]]:
    verbose = dead = sources = False
    for position, word in enumerate(arguments):
        match word.upper():
            case "VERBOSE":
                verbose = True
            case "DEAD":
                dead = True
            case "SOURCES":
                sources = True
            case "SESSIONS":
                return verbose, dead, sources, set(arguments[position + 1 :])
            case _:
                raise GearsError(
                    f"ERR unknown argument of RG.PYDUMPSESSIONS: {word[:100]}, expected VERBOSE, DEAD, SOURCES or"
                    " SESSIONS"
                )
    return verbose, dead, sources, set()


def _requirement(name: str, users: int = 1) -> list[Any]:
    """Return the entry of a requirement for the reply. `users` is the number of sessions that have the requirement.
    The entry says that the requirement is installed, because a session with a missing requirement is refused.
    """
    return [
        *("GearReqVersion", 1),
        *("Name", name),
        *("IsDownloaded", "yes"),
        *("IsInstalled", "yes"),
        *("CompiledOs", f"{platform.system().lower()}-{platform.machine()}"),
        *("Wheels", []),
        *("Path", ""),
        *("RefCount", users),
        *("IsInReqDictionary", "yes"),
    ]
