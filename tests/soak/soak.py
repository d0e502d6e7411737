"""The soak: half an hour of use with random faults, and a report at the end.

    python -m tests.soak.soak [--minutes 30] [--seed N] [--server valkey]
    python -m tests.soak.soak --planted

It runs a cluster of three shards with real workers and the bundled reader, and the REST service.

- Load: questions with known answers; documents and registrations that are created and removed; AI.* and RG.* commands;
  functions that sleep in triggers, streams and runs.
- Faults: one every second or two (faults.py). They also kill and stop the inference workers, in which models run.
- Answers: every answer must be right, or an error that clients may get (verdicts.py lists these errors).
- Pauses: once a minute everything pauses for some seconds. Then queues must be empty, all shards must have the same
  registrations, and the resources are measured.
- End: after the last fault the load continues for a while, so that workers release their resources. Then every question
  must have its right answer, queues must be empty, and no client may be blocked. Memory, descriptors, threads and
  processes must not have grown (resources.py has the tolerances).

A table and the exit status report the result.

`--planted` shows that the soak can fail: short runs with modules that have one deliberate mistake each (planted.py)
must fail.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import redis

from qa_cluster.errors import QAError
from tests.harness.polling import eventually
from tests.harness.processes import inference_workers
from tests.harness.programs import chosen_servers, find_binary
from tests.harness.system import SHARDS, System
from tests.soak.faults import MEMORY_MB, Faults
from tests.soak.gate import Gate
from tests.soak.load import Load, town
from tests.soak.resources import Watch
from tests.soak.verdicts import ALLOWED_CODES, ALLOWED_TEXTS

RECOVERY_SECONDS = 60.0
LONGER_SECONDS = 240.0  # the additional time that a run may take on a busy machine, at its start and at its end
TURN_SECONDS = 120.0
INFERENCE_WORKERS = 2  # two, so that the batch of a dead process is retried in the other process
SETTINGS = {
    "qa.worker-memory-mb": MEMORY_MB,
    "qa.worker-silence-ms": 4000,  # short, so that a hanging worker is replaced before the next fault
    "qa.worker-start-ms": 20000,  # the same limit for a worker that has not sent a beat yet
    "qa.inference-workers": INFERENCE_WORKERS,
    # The server fills these buffers slowly, which would look like a leak.
    "slowlog-max-len": 0,
    "latency-tracking": "no",
}
BUSY_FIELDS = (
    *("qa_queued_clients", "qa_queued_events", "qa_in_flight"),
    *("rdb_bgsave_in_progress", "aof_rewrite_in_progress", "aof_rewrite_scheduled", "lazyfree_pending_objects"),
)


@dataclass(frozen=True)
class Plan:
    """The length of a run and its number of pauses.

    The run takes longer until it has had `faults` faults, and until each kind of request in `right` got a right answer.
    After LONGER_SECONDS more, it fails.
    """

    seconds: float
    rests: int
    calm_seconds: float
    calm_rests: int
    faults: int = 0
    right: tuple[str, ...] = ()

    @classmethod
    def of(cls, seconds: float) -> Plan:
        """A plan for a run of this length with a calm end."""
        return cls(seconds, max(8, round(seconds / 60)), max(seconds / 10, 40.0), 8)


class Soak:
    """One run."""

    def __init__(self, system: System, seed: int, fault_pause_seconds: float) -> None:
        self.system = system
        for node in system.nodes:
            for name, value in SETTINGS.items():
                node.config_set(name, value)
            # the next worker has the settings; `worker_pid` is never 0, which would mean all processes of this run
            os.kill(system.worker_pid(node), signal.SIGKILL)
        eventually(self.has_new_workers, RECOVERY_SECONDS)
        self.gate = Gate()
        self.load = Load(system, seed, self.gate)
        self.load.prepare()
        self.faults = Faults(system, seed, fault_pause_seconds, self.gate)
        self.watch = Watch(system)
        self.problems: list[str] = []
        self.told_wrong = self.told_problems = 0

    def has_new_workers(self) -> bool:
        """Whether the first worker of each shard has been replaced."""
        fields = [self.system.info(node) for node in self.system.nodes]
        return all(int(field["qa_worker_number"]) > 1 and field["qa_worker_state"] == "ready" for field in fields)

    def run(self, plan: Plan) -> None:
        """Runs the load with faults, then the load without faults, then the end."""
        self.rest(calm=False)
        try:
            self.load.start()
            self.faults.start()
            self.continue_load(plan.seconds, plan.rests, calm=False)
            eventually(lambda: self.faults.counts.total() >= plan.faults, LONGER_SECONDS)
            self.faults.stop()
            self.continue_load(plan.calm_seconds, plan.calm_rests, calm=True)
            eventually(lambda: all(map(self.load.verdicts.right, plan.right)), LONGER_SECONDS)
        finally:  # an interrupted run must end its threads, which would disturb the next test
            self.faults.stop()
            self.load.stop()
        self.problems += self.load.broken
        self.problems += self.load.verdicts.wrong
        self.problems += [] if self.faults.counts else ["no fault was injected"]
        self.recovers()

    def continue_load(self, seconds: float, rests: int, *, calm: bool) -> None:
        """Continues the load for `seconds`, with `rests` pauses."""
        begun = time.monotonic()
        for number in range(1, rests + 1):
            time.sleep(max(0.0, begun + seconds * number / rests - time.monotonic()))
            self.rest(calm=calm)

    def rest(self, *, calm: bool) -> None:
        """Pauses all work. Then every queue must be empty, and the resources are measured."""
        with self.gate.closed(TURN_SECONDS) as alone:
            if not alone:
                self.problems.append(f"a client still waits after {TURN_SECONDS:g} s")
            elif self.is_idle():
                self.look(calm=calm)
        verdicts = self.load.verdicts
        print(
            f"{time.strftime('%H:%M:%S')} rest {len(self.watch.looks)}: {sum(verdicts.counts.values())} requests, "
            f"{sum(self.faults.counts.values())} faults, {len(verdicts.wrong) + len(self.problems)} problems",
            flush=True,
        )
        for problem in [*verdicts.wrong[self.told_wrong :], *self.problems[self.told_problems :]]:
            print(f"problem: {problem}", flush=True)
        self.told_wrong, self.told_problems = len(verdicts.wrong), len(self.problems)

    def look(self, *, calm: bool) -> None:
        """Measures the resources. Skips the measurement if the module replaces a worker meanwhile."""
        try:
            self.watch.look(calm=calm)
        except OSError as error:
            print(f"no measurement: {error}", flush=True)

    def is_idle(self) -> bool:
        """Waits until all shards are idle; otherwise records a problem and returns False."""
        try:
            eventually(lambda: not self.leftovers(), RECOVERY_SECONDS, ignore=redis.RedisError)
        except AssertionError:
            self.problems.append(f"{time.strftime('%H:%M:%S')} left over: {self.leftovers()}")
            return False
        return True

    def recovers(self) -> None:
        """Checks that the shards are idle again and all known questions get their right answers."""
        self.is_idle()
        client = self.load.rest()
        for number in self.load.known:
            _, _, question, answer = town(number)
            try:
                found = client.ask(question).answers
            except QAError as error:
                self.problems.append(f"afterwards {question!r} fails: {error}")
                continue
            if not found or found[0].answer != answer:
                self.problems.append(f"afterwards {question!r} has the answer {found and found[0].answer!r}")

    def leftovers(self) -> dict[str, int]:
        """The jobs, clients and differences that idle shards must not have."""
        found: dict[str, int] = {}
        registered = []
        for index in range(SHARDS):
            fields = self.system.info(self.system.nodes[index])
            registered.append({str(row[1]) for row in self.system.nodes[index].execute_command("RG.DUMPREGISTRATIONS")})
            links = int(fields["qa_worker_links"])
            counts = {name: int(fields[name]) for name in BUSY_FIELDS}
            counts["blocked_clients"] = max(0, int(fields["blocked_clients"]) - links)
            counts["worker not ready"] = int(fields["qa_worker_state"] != "ready")
            counts["stopped worker"] = int(stands_still(int(fields["qa_worker_pid"])))
            models = inference_workers(int(fields["process_id"]))
            counts["stopped inference workers"] = sum(map(stands_still, models))
            counts["inference workers not ready"] = INFERENCE_WORKERS - int(fields["qa_inference_ready"])
            counts["models that inference workers lack"] = int(fields["qa_inference_missing"])
            counts["running functions"] = int(fields["qa_worker_functions_running"])
            found |= {f"shard {index}: {name}": count for name, count in counts.items() if count}
        if some := registered[0].union(*registered) - registered[0].intersection(*registered):
            found[f"registrations that not every shard has: {', '.join(sorted(some))}"] = len(some)
        return found

    def report(self) -> bool:
        """Prints the report; returns whether the run has no problem."""
        print("\nfaults: " + ", ".join(f"{name} {count}" for name, count in sorted(self.faults.counts.items())))
        for failure in self.faults.failed[:5]:
            print(f"fault that could not be injected: {failure}")
        print(f"\n{'request':<14}{'outcome':<32}{'count':>9}")
        for (kind, verdict), count in sorted(self.load.verdicts.counts.items()):
            print(f"{kind:<14}{verdict:<32}{count:>9}   {(ALLOWED_CODES | ALLOWED_TEXTS).get(verdict, '')}")
        heading = f"at rest, {len(self.watch.looks)} measurements"
        print(f"\n{heading:<22}{'first':>12}{'last':>12}{'growth':>12}{'limit':>12}")
        for row in self.watch.judge():
            scale = 1 << 20 if row.name.endswith(("RSS", "memory")) else 1
            numbers = "".join(f"{value / scale:>12.2f}" for value in (row.first, row.last, row.growth, row.limit))
            print(f"{row.name:<22}{numbers}   {'HAS GROWN' if row.grown else '' if row.judged else 'not judged'}")
            if row.grown:
                self.problems.append(f"{row.name} has grown")
        for problem in self.problems[:40]:
            print(f"PROBLEM: {problem}")
        print(f"\nsoak: {len(self.problems)} problems")
        return not self.problems


def stands_still(pid: int) -> bool:
    """Whether a process is stopped. A stopped worker counts as ready until the server kills it."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False  # the process has just ended


def soak(binary: Path, plan: Plan, seed: int, fault_pause_seconds: float = 1.5, **settings: str) -> Soak:
    """Does one run on a separate cluster, and prints its report."""
    with System(binary, **settings) as system:
        system.start_service()
        run = Soak(system, seed, fault_pause_seconds)
        with run.load.opened:
            run.run(plan)
        run.report()
        return run


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--server", choices=["valkey", "redis"], default=chosen_servers()[0])
    parser.add_argument("--planted", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an interrupted run must stop its servers
    if options.planted:
        from tests.soak.planted import prove

        raise SystemExit(prove(options.server))
    binary = find_binary(options.server)
    if binary is None:
        raise SystemExit(f"no {options.server} server on this machine")
    print(f"soak: seed {options.seed}, {options.minutes} minutes on {options.server}", flush=True)
    sys.exit(1 if soak(binary, Plan.of(options.minutes * 60), options.seed).problems else 0)


if __name__ == "__main__":
    main()
