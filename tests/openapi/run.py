"""Tests every route of the REST service against its description: `make schemathesis`.

    python -m tests.openapi.run [--examples 100] [--seed N] [--server valkey]

The service runs on a cluster of two shards with workers and the bundled reader. Schemathesis makes valid and invalid
requests from `/openapi.json`. The first run is without API keys. Further runs have a key with all rights, a key with
some rights in one collection, a key that has reached its limits, and no key although the service requires one. Every
500, and every status, media type or body outside of the description, is a fault. `schemathesis.toml` has the statuses
that are allowed for valid and for invalid requests.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from pathlib import Path

from tests.harness.programs import chosen_servers, find_binary
from tests.harness.system import UNHURRIED, System
from tests.openapi.walk import walk

SCOPES = ("ask", "search", "write", "admin")
KEYS = {
    "a key of all scopes": (),
    "a key of one collection": ("--collection", "books"),
    "a key at its limits": ("--requests-per-second", "5", "--concurrent", "1", "--sentences-per-day", "3"),
}


def made(system: System, name: str, options: tuple[str, ...]) -> str:
    """Create a key and return its text."""
    scopes = [word for scope in SCOPES for word in ("--scope", scope)]
    return str(json.loads(system.cli("keys", "create", name, *scopes, *options, "--json").stdout)["key"])


def run(system: System, examples: int, seed: int) -> int:
    """Run Schemathesis with each kind of key; return the number of runs with findings."""
    system.cli("collections", "create", "books")
    system.http("/documents/ada", b'{"text": "Ada wrote programs.", "title": "Ada"}', "PUT")
    keys = {"no key": "", **dict.fromkeys(KEYS, ""), "none of the keys": ""}
    bad = 0
    for name in keys:
        key = made(system, name, KEYS[name]) if name in KEYS else ""
        begun = time.monotonic()
        fits, said = walk(system.port, system.folder, key=key, examples=examples, seed=seed)
        bad += not fits
        cases = next((line for line in said.splitlines() if "generated" in line), "no request").strip()
        print(f"{name}: {'as described' if fits else 'NOT AS DESCRIBED'}, {cases}, {time.monotonic() - begun:.0f} s")
        if not fits:
            print(said)
    log = (system.folder / "service.log").read_text(errors="replace")
    if "Traceback" in log:
        bad += 1
        print(f"the service's log has a traceback:\n{log[-20_000:]}")
    return bad


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=100, help="number of requests for each operation and phase")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--server", choices=("valkey", "redis"), default=chosen_servers()[0])
    options = parser.parse_args()
    binary: Path | None = find_binary(options.server)
    if binary is None:
        sys.exit(f"no {options.server} server on this machine")
    print(f"seed {options.seed}", flush=True)
    with System(binary, shards=2, **UNHURRIED) as system:
        system.start_service()
        bad = run(system, options.examples, options.seed)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
