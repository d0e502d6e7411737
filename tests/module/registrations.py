"""Registrations through the scriptable worker, and RG.DUMPREGISTRATIONS as dicts."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from tests.harness.clusters import Cluster
from tests.harness.polling import eventually
from tests.harness.servers import Server, execute

NO_ARGS = "*0\r\n"


def dump(server: Server) -> dict[str, dict[str, Any]]:
    """The registrations by their ids."""
    with server.client(protocol=2) as client:
        entries = [
            dict(zip(entry[::2], entry[1::2], strict=True)) for entry in client.execute_command("RG.DUMPREGISTRATIONS")
        ]
    for entry in entries:
        data = entry["RegistrationData"]
        entry["RegistrationData"] = dict(zip(data[::2], data[1::2], strict=True))
    return {entry["id"]: entry for entry in entries}


def status(server: Server, registration: str) -> str:
    """The status of a StreamReader registration."""
    return str(dump(server)[registration]["RegistrationData"]["status"])


def wait_for_bus(cluster: Cluster) -> None:
    """Waits until a change of any server reaches all other servers, because the bus of a young cluster loses messages.

    It repeats an idempotent change: clearing the statistics of the trigger `echo`.
    """

    def counted(server: Server) -> int:
        return int(dump(server)["id-echo"]["RegistrationData"]["numTriggered"])

    def cleared(by: Server) -> bool:
        execute(by, "RG.CLEARREGISTRATIONSSTATS")
        # Repeat the change only after it was lost: a late message would clear the counters of a test.
        return eventually(lambda: not any(map(counted, cluster.nodes)), 3)

    for teller in cluster.nodes:
        for server in cluster.nodes:
            execute(server, "RG.TRIGGER", "echo")
        eventually(partial(cleared, teller), 30, ignore=AssertionError)


def run(server: Server, *commands: list[object]) -> list[Any]:
    """Runs commands on a link of the worker."""
    with server.client() as client:
        return list(json.loads(client.execute_command("RG.PYEXECUTE", json.dumps({"run": commands}))))


def register(server: Server, session: str, *registrations: list[str]) -> str:
    """Sends QA.REGISTER and returns its reply."""
    arguments = [word for registration in registrations for word in registration]
    return str(run(server, ["QA.REGISTER", session, "", "source", "payload", len(registrations), *arguments])[0])


def keys_reader(name: str, match: str, events: str = "", commands: str = "") -> list[str]:
    """A KeysReader registration."""
    return [name, "KeysReader", "async_local", "", match, events, commands, NO_ARGS, "", "user", "0"]


def stream_reader(name: str, match: str) -> list[str]:
    """A StreamReader registration."""
    return [name, "StreamReader", "async_local", "", match, "xadd", "", NO_ARGS, "", "user", "0"]


def trigger(name: str, word: str, *, in_order: bool = False, own: bool = False, cost_from: int = 0) -> list[str]:
    """A CommandReader registration of a user function or of an own function."""
    args = f"*4\r\n$7\r\ntrigger\r\n${len(word)}\r\n{word}\r\n$7\r\ninorder\r\n:{int(in_order)}\r\n"
    return [name, "CommandReader", "async_local", "", word, "", "", args, "", "own" if own else "user", str(cost_from)]
