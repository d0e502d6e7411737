"""Sends random AI.*, RG.* and QA.* commands to a real server with a hostile worker, from clients that may disconnect.

    python -m tests.fuzz.fuzz_commands --cases 5000 --seed 1 [--server redis] [--parts 2] [--files 50]
    python -m tests.fuzz.fuzz_commands --planted

`--parts` servers share the cases and run in parallel; `--part N` repeats one of these parts. Then `--files` servers
start on damaged RDB and append-only files. The exit status is 1 if a server dies, hangs, sends a wrong number of
replies, keeps resources after all clients have left, or if the sanitizer reports an error. The output names the seed,
the part, the case, and the file with the last commands. QA_TEST_MODULE and QA_TEST_PRELOAD choose a sanitized build, as
in the tests (tests/harness/programs.py); this works only with redis-server: Valkey loads modules with RTLD_DEEPBIND.

`--planted` shows that the fuzzer can fail: `planted.py` builds copies of the module with one mistake each, and the
fuzzer must find each mistake.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz.checks import keep_log
from tests.fuzz.client import Finding
from tests.fuzz.damage import Files
from tests.fuzz.fuzzer import Fuzzer
from tests.harness.programs import chosen_servers, find_binary
from tests.harness.servers import Server
from tests.harness.workers import fake_worker

ENOUGH = 1000  # after this number of cases, at least one waiting client has disconnected
SETTINGS: dict[str, object] = {
    "qa.job-timeout-ms": 150,
    "qa.hook-timeout-ms": 150,
    "qa.script-timeout-ms": 200,
    "qa.background-timeout-ms": 150,  # a limit, because the worker does not end every event
    "qa.cancel-grace-ms": 500,
    "qa.atomic-lease-ms": 30,
    "qa.worker-silence-ms": 1500,
    "qa.worker-backoff-ms": 5,
    "qa.max-queue": 50,
    "qa.max-events": 100,
    "appendonly": "yes",
    "auto-aof-rewrite-min-size": "16mb",
    "maxclients": 500,
    "maxmemory": "1gb",
}


def binary_of(name: str) -> Path:
    """The server program."""
    binary = find_binary(name)
    if binary is None:
        raise SystemExit(f"no {name} server on this machine")
    return binary


def fuzz(cases: int, seed: int, name: str, part: int = 0) -> dict[str, int]:
    """Runs the fuzzer on its own server and returns the number of jobs of each kind. Raises Finding."""
    worker = fake_worker("tests.fuzz.hostile", seed)
    with Server(binary_of(name), SETTINGS, worker=worker) as server:
        fuzzer = Fuzzer(server, seed, part)
        try:
            fuzzer.run(cases)
            kinds = {key[3:]: value for key, value in server.info().items() if key.startswith("qa_jobs_")}
            jobs = {kind: int(value["submitted"]) for kind, value in kinds.items()}
            jobs["workers"] = int(server.field("worker_number"))
            jobs["client_gone"] = sum(int(value["client_gone"]) for value in kinds.values())
            jobs["bytes_grown"] = fuzzer.grew
            if cases >= ENOUGH and not jobs["client_gone"]:
                raise Finding("clients left while they waited, and none was noticed")
            process = server.process
            server.stop()
            if process is None or process.returncode != 0:
                raise Finding(f"the server ended with {process and process.returncode}")
        except Exception as error:
            where = keep_log(f"fuzz-{seed}-{part}", fuzzer.log, [server])
            raise Finding(f"seed {seed}, part {part}: {error}; the last commands and the log are in {where}") from error
        return jobs


def fuzz_parts(options: argparse.Namespace) -> None:
    """Runs several servers in parallel, each in its own process."""
    share = -(-options.cases // options.parts)
    command = [sys.executable, "-m", "tests.fuzz.fuzz_commands", "--server", options.server]
    command += ["--seed", str(options.seed)]
    running = [
        subprocess.Popen([*command, "--cases", str(share), "--part", str(part), "--files", "0"])
        for part in range(options.parts)
    ]
    try:
        while any(process.poll() is None for process in running) and not any(process.poll() for process in running):
            time.sleep(0.2)
    finally:
        for process in running:
            process.send_signal(signal.SIGINT)  # so that the process ends its server
            process.wait(60)
    if any(process.returncode for process in running):
        raise SystemExit(1)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--server", choices=["valkey", "redis"], default=chosen_servers()[0])
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--planted", action="store_true")
    options = parser.parse_args()
    if options.planted:
        from tests.fuzz.planted import prove

        raise SystemExit(prove())
    started = time.monotonic()
    print(f"fuzz: seed {options.seed}, {options.cases} cases on {options.server}", flush=True)
    try:
        if options.parts > 1:
            fuzz_parts(options)
        elif options.cases:
            jobs = fuzz(options.cases, options.seed, options.server, options.part)
            print(f"part {options.part}: nothing found; jobs: {jobs}")
        if options.files:
            print(f"damaged files: {Files(binary_of(options.server), options.seed).run(options.files)}")
    except Finding as finding:
        raise SystemExit(f"FOUND: {finding}") from finding
    except KeyboardInterrupt:
        raise SystemExit(f"part {options.part}: stopped") from None
    print(f"{options.cases} cases, {options.files} files, {time.monotonic() - started:.0f} s: nothing found")


if __name__ == "__main__":
    main()
