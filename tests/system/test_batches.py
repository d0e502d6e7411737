"""Batches survive SIGKILL of workers, service and shards: each request has exactly one result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from qa_cluster import keys
from qa_cluster.batches.records import ANONYMOUS_OWNER
from tests.harness.polling import eventually
from tests.harness.processes import descendants
from tests.harness.system import TOOL, WORDS_ONLY, System

pytestmark = pytest.mark.timeout(1200)

TEXT = "Herman Melville wrote Moby Dick. The whale is white."
LINES = 200
VICTIMS = ("workers", "shard", "service", "jobs work")
SECONDS = 600.0
WORKER = "jobs_worker"


class Workers:
    """`qa-cluster jobs work`. Tests kill and restart its processes."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with (self._system.folder / "jobs.log").open("ab") as log:
            self.process = subprocess.Popen(
                [TOOL, "jobs", "work", "--workers", "2"], env=self._system.environment, stdout=log, stderr=log
            )

    def kill_workers(self) -> int:
        """Kill the worker processes; return their number."""
        assert self.process is not None
        found = [pid for pid, command in descendants(self.process.pid).items() if WORKER in command]
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(found)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(60)


def upload(system: System, data: bytes) -> str:
    boundary = uuid.uuid4().hex
    form = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="in"\r\n\r\n'
    ).encode()
    done = subprocess.run(
        [
            *("curl", "-s", "-S", "-H", f"Content-Type: multipart/form-data; boundary={boundary}"),
            *("--data-binary", "@-", f"http://127.0.0.1:{system.port}/v1/files"),
        ],
        input=form + data + f"\r\n--{boundary}--\r\n".encode(),
        capture_output=True,
        check=True,
    )
    return str(json.loads(done.stdout)["id"])


def shown(system: System, batch_id: str) -> dict[str, Any] | None:
    """The batch, or None if the service cannot read it."""
    with suppress(OSError):
        status, _, body = system.http(f"/v1/batches/{batch_id}")
        if status == 200:
            return dict(json.loads(body))
    return None


def contents(system: System, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    status, _, body = system.http(f"/v1/files/{file_id}/content", seconds=60)
    assert status == 200
    return [json.loads(line) for line in body.splitlines()]


class Trial:
    """A batch on a system whose processes the test kills and, instead of a supervisor, restarts."""

    def __init__(self, system: System, lines: list[dict[str, Any]]) -> None:
        self.system = system
        self.workers = Workers(system)
        file_id = upload(system, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        body = json.dumps({"input_file_id": file_id, "endpoint": "/qa", "completion_window": "24h"}).encode()
        self.batch_id = json.loads(system.http("/v1/batches", body)[2])["id"]
        owned = keys.batches_key(ANONYMOUS_OWNER)
        self._shard = next(index for index, node in enumerate(system.nodes) if owns(node, owned))
        self.killed = Counter[str]()

    def kill(self, what: str) -> None:
        """Kill and restart a part of the system: workers, service, or a shard."""
        if what == "workers":
            self.killed[what] += self.workers.kill_workers()
            return
        if what == "jobs work":
            self.workers.kill()
            self.workers.start()
        elif what == "service":
            self.system.stop_service(signal.SIGKILL)
            self.system.start_service()
        else:
            self.system.may_end()
            os.kill(self.system.server_pid(self._shard), signal.SIGKILL)
            time.sleep(2)
            self.system.cli("up", "--no-password")
        self.killed[what] += 1

    def batch(self) -> dict[str, Any]:
        """The batch, once the service can read it."""
        return dict(eventually(lambda: shown(self.system, self.batch_id), SECONDS))

    def progress(self) -> int:
        """The number of recorded results."""
        counts = self.batch()["request_counts"]
        return int(counts["completed"]) + int(counts["failed"])

    def wait_for(self, results: int) -> int:
        """Wait until at least `results` results are recorded; return their number."""
        eventually(lambda: self.progress() >= results, SECONDS)
        return self.progress()


def test_each_request_has_one_result_although_processes_are_killed(server_binary: Path) -> None:
    lines = [
        {"custom_id": f"c{n}", "method": "POST", "url": "/qa", "body": {"question": f"Who wrote book {n}?"}}
        for n in range(LINES)
    ]
    for line in lines[::50]:
        line["body"] = {"question": ""}
    with System(server_binary, **WORDS_ONLY) as system:
        system.start_service()
        (system.folder / "moby.txt").write_text(TEXT)
        system.cli("ingest", str(system.folder / "moby.txt"))
        trial = Trial(system, lines)
        try:
            for number, what in enumerate(VICTIMS, 1):
                acknowledged = trial.wait_for(number * LINES // (len(VICTIMS) + 2))
                trial.kill(what)
                assert trial.progress() >= acknowledged, "recorded results were lost"
            eventually(lambda: trial.batch()["status"] == "completed", SECONDS)
            batch = trial.batch()
            good, bad = contents(system, batch["output_file_id"]), contents(system, batch["error_file_id"])
            print(f"killed {dict(trial.killed)}: {len(good)} good and {len(bad)} failed results, {LINES} requests")
            assert batch["request_counts"] == {"total": LINES, "completed": len(good), "failed": len(bad)}
            answered = [line["custom_id"] for line in good + bad]
            assert len(answered) == len(set(answered)) == LINES
            assert [line["custom_id"] for line in bad] == [line["custom_id"] for line in lines[::50]]
            assert trial.killed.keys() == set(VICTIMS)
            check_commands(system, batch)
        finally:
            trial.workers.stop()


def check_commands(system: System, batch: dict[str, Any]) -> None:
    """Check `jobs list`, `show` and `cancel` for a completed batch."""
    (listed,) = json.loads(system.cli("jobs", "list", "--json").stdout)["data"]
    assert listed == batch | {"owner": ANONYMOUS_OWNER}
    assert json.loads(system.cli("jobs", "show", batch["id"], "--json").stdout) == listed
    assert f"{LINES} of {LINES}" in " ".join(system.cli("jobs", "show", batch["id"]).stdout.split())
    refused = system.cli("jobs", "cancel", batch["id"], check=False)
    assert refused.returncode == 1 and "has ended with status completed" in refused.stderr
    assert system.cli("jobs", "show", "x", check=False).returncode == 2


def owns(node: Any, key: str) -> bool:
    """Whether a server has the slot of a key."""
    try:
        node.exists(key)
    except redis.ResponseError:  # MOVED
        return False
    return True
