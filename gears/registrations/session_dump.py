"""`RG.PYDUMPSESSIONS`: the sessions of a shard, also those that only a running execution or a timer keeps."""

from __future__ import annotations

import platform
from typing import Any

from ..scripting.runtime import Runtime
from ..shard.failures import GearsError
from ..shard.replies import decode_reply
from .sessions import Session


def dump_sessions(runtime: Runtime, arguments: list[str]) -> list[Any]:
    """The reply of ``RG.PYDUMPSESSIONS [VERBOSE] [DEAD] [SESSIONS s..]``.

    Without names: all that live, or with DEAD those that have been replaced or unregistered while something still
    uses them. VERBOSE tells registrations and requirements in full.
    """
    verbose, dead, names = _parse(arguments)
    users = _users(runtime)
    sessions = [*runtime.sessions.all(), *users]
    unique = {id(session): session for session in sessions}.values()
    wanted = [session for session in unique if session.id in names or (not names and session.dead == dead)]
    missing = names - {session.id for session in wanted}
    if missing:
        raise GearsError(f"ERR session does not exists: {min(missing)}")
    registrations = _registrations(runtime) if verbose else {}
    return [_describe(runtime, session, users.count(session), registrations, verbose) for session in wanted]


def _parse(arguments: list[str]) -> tuple[bool, bool, set[str]]:
    verbose = dead = False
    for position, word in enumerate(arguments):
        match word.upper():
            case "VERBOSE":
                verbose = True
            case "DEAD":
                dead = True
            case "SESSIONS":
                return verbose, dead, set(arguments[position + 1 :])
            case _:
                raise GearsError(
                    f"ERR unknown argument of RG.PYDUMPSESSIONS: {word}, expected VERBOSE, DEAD or SESSIONS"
                )
    return verbose, dead, set()


def _users(runtime: Runtime) -> list[Session]:
    """The session of everything that runs, once for each."""
    running = (execution.session for execution in runtime.history.all() if not execution.finished)
    return [session for session in running if session is not None] + runtime.timers.sessions()


def _describe(runtime: Runtime, session: Session, used: int, registrations: dict[str, Any], verbose: bool) -> list[Any]:
    linked = "None" if session.dead else "primary" if runtime.sessions.get(session.id) is session else "temprary"
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


def _requirement(name: str) -> list[Any]:
    """A requirement: it is installed in the worker's environment, else its session would not be there."""
    return [
        *("GearReqVersion", 1),
        *("Name", name),
        *("IsDownloaded", "yes"),
        *("IsInstalled", "yes"),
        *("CompiledOs", f"{platform.system().lower()}-{platform.machine()}"),
        *("Wheels", []),
        *("Path", ""),
        *("RefCount", 1),
        *("IsInReqDictionary", "yes"),
    ]


def _registrations(runtime: Runtime) -> dict[str, Any]:
    """The entries of `RG.DUMPREGISTRATIONS` by id."""
    entries = decode_reply(runtime.execute_own("RG.DUMPREGISTRATIONS"))
    return {dict(zip(entry[::2], entry[1::2], strict=True))["id"]: entry for entry in entries}
