"""Commands that functions must not run: internal commands, commands that wait for the worker, and commands that change
the connection.
"""

from __future__ import annotations

from .failures import GearsError

# in a function, these commands would wait for the worker, and the worker would wait for the function
WAIT_FOR_WORKER = frozenset(
    {
        *("RG.PYEXECUTE", "RG.TRIGGER", "RG.TRIGGERONKEY", "RG.GETRESULTSBLOCKING", "RG.GETRESULTS"),
        *("RG.GETEXECUTION", "RG.DUMPEXECUTIONS", "RG.DROPEXECUTION", "RG.ABORTEXECUTION", "RG.PYDUMPSESSIONS"),
        "RG.PYDUMPREQS",
        *("AI.MODELRUN", "AI.MODELEXECUTE", "AI.MODELSTORE", "AI.MODELSET"),
        *("AI.SCRIPTSTORE", "AI.SCRIPTSET", "AI.SCRIPTRUN", "AI.SCRIPTEXECUTE"),
        *("AI.DAGEXECUTE", "AI.DAGEXECUTE_RO"),
    }
)
# these commands change their connection, which all functions of a thread share
_CHANGE_LINK = frozenset(
    {
        *("MULTI", "EXEC", "DISCARD", "WATCH", "UNWATCH", "SELECT", "AUTH", "HELLO", "RESET", "QUIT", "CLIENT"),
        *("SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE", "MONITOR"),
    }
)


def is_internal(command: str) -> bool:
    """Return whether functions must not run a command because of its name: all `QA.*` except `QA.INDEX.*`.

    Most of these commands are only for the worker. Clients also use some of them, such as `QA.PUTDOCUMENT`.
    """
    name = command.upper()
    return name.startswith("QA.") and not name.startswith("QA.INDEX.")


def refuse_forbidden(command: str) -> None:
    """Raise GearsError for a command that a function must not run."""
    name = command.upper()
    if is_internal(name):
        raise GearsError(f"NOPERM {command} can not run inside a function: only clients and the worker run it")
    if name in WAIT_FOR_WORKER:
        raise GearsError(f"ERR {command} can not run inside a function: it would wait for the worker that runs it")
    if name in _CHANGE_LINK:
        raise GearsError(
            f"ERR {command} can not run inside a function: it would change the connection that functions share; "
            "use atomic() for a transaction"
        )
