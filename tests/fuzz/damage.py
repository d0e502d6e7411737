"""Damaged data: dumps for RESTORE, RDB files and append-only files, truncated and changed at random."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

import redis

from tests.fuzz.checks import REPORTS
from tests.fuzz.client import Finding
from tests.fuzz.shapes import SOURCE
from tests.fuzz.words import OURS
from tests.harness.polling import eventually
from tests.harness.ports import free_port
from tests.harness.programs import MODULE, server_environment
from tests.harness.servers import Server
from tests.harness.workers import fake_worker

FOOTER = 10  # version and checksum at the end of a dump
# Texts of a server that refuses a file. After the first, the server checks the file. The check never ends (7.0 and
# Valkey 9) if a module's value is cut between two of its parts. After the second, the server panics on purpose, because
# damage has made two keys equal.
REFUSED = ("Internal error in RDB reading", "Duplicated key found in RDB file")
STARTED = "eady to accept connections"
SECONDS = 20.0


def asks_for_too_much_memory(said: str) -> bool:
    """Return whether the server itself, not the module, has ended because damage has made a size too large.

    Redis 7.0 can then hang while it writes its report.
    """
    _, panicked, report = said.partition("aborting for OUT OF MEMORY")
    trace, complete, _ = report.partition("INFO OUTPUT")
    return bool(panicked and complete) and MODULE.name not in trace


def fill(server: Server) -> None:
    """Stores a value of each type of the module. Repeats this until the hostile worker accepts the values."""
    eventually(partial(_fill, server), SECONDS, ignore=redis.RedisError)


def _fill(server: Server) -> bool:
    with server.client() as client:
        names = {str(name).upper() for name in client.execute_command("COMMAND LIST", "FILTERBY", "MODULE", "qa")}
        client.delete(*OURS)
        client.execute_command("AI.TENSORSET", "t1", "FLOAT", 2, 2, "VALUES", 1, 2, 3, 4)
        client.execute_command("AI.TENSORSET", "t2", "STRING", 2, "VALUES", "a", "bc")
        model = ["AI.MODELSTORE", "m1", "ONNX", "CPU", "TAG", "t", "BATCHSIZE", 4, "MINBATCHSIZE", 2]
        client.execute_command(*model, "BLOB", b"a model" * 20)
        for document in ("a", "b"):
            client.execute_command("QA.INDEX.PUT", "ix1", document, b"", b"\3\2\1\1a\2\1b" * 5)
        if "AI.SCRIPTSTORE" in names:
            client.execute_command("AI.SCRIPTSTORE", "sc1", "CPU", "ENTRY_POINTS", 1, "bar", "SOURCE", SOURCE)
    return True


def payloads(server: Server) -> dict[str, bytes]:
    """A good dump of each type. The keys of the dumps are deleted."""
    fill(server)
    with server.client(decode_responses=False) as client:
        found = {key: client.dump(key) for key in OURS}
        client.delete(*OURS)
    return {key: dump for key, dump in found.items() if dump}


def changed(chance: random.Random, body: bytes) -> bytes:
    """Replaces, removes or repeats bytes, or cuts off the end."""
    data = bytearray(body)
    for _ in range(chance.choice([1, 1, 2, 4])):
        if not data:
            break
        at, kind = chance.randrange(len(data)), chance.randrange(5)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            del data[at : at + chance.randint(1, 8)]
        elif kind == 2:
            data[at:at] = data[at : at + chance.randint(1, 16)]
        else:
            data[at] = chance.choice([0, 1, 2, 5, 20, 63, 0x7F, 0x80, 0x81, 0xFF, chance.randrange(256)])
    return bytes(data)


def damaged(chance: random.Random, payload: bytes) -> bytes:
    """A damaged dump that RESTORE starts to load. Sometimes a dump that RESTORE refuses at once, or a good dump."""
    if chance.random() < 0.1:
        return payload
    if chance.random() < 0.1:
        return changed(chance, payload)
    return changed(chance, payload[:-FOOTER]) + payload[-FOOTER:]


class Files:
    """The files of a server with all kinds of the module's data, and servers that start on damaged copies."""

    def __init__(self, binary: Path, seed: int) -> None:
        self.binary = binary
        self.seed = seed
        with Server(binary, {"appendonly": "yes"}, worker=fake_worker("functions")) as server:
            server.wait_ready()
            fill(server)
            with server.client() as client:
                client.save()
                client.execute_command("BGREWRITEAOF")
                eventually(lambda: not client.info("persistence")["aof_rewrite_in_progress"], SECONDS)
            fill(server)
            server.stop()
            self.rdb = (server.directory / "dump.rdb").read_bytes()
            self.aof = {path.name: path.read_bytes() for path in (server.directory / "appendonlydir").iterdir()}

    def run(self, cases: int) -> dict[str, int]:
        """Starts servers; returns how many loaded and how many refused the files. Any other outcome is a Finding."""
        counts = {"loaded": 0, "refused": 0}
        for number in range(cases):
            chance = random.Random(f"{self.seed} file {number}")
            outcome = self.start(chance, number)
            counts[outcome] += 1
        return counts

    def start(self, chance: random.Random, number: int) -> str:
        """Starts a server on damaged files. It must answer, or exit and log the reason."""
        directory = Path(tempfile.mkdtemp(prefix="qa-fuzz-"))
        try:
            append_only = chance.random() < 0.4
            if append_only:
                self.write_aof(chance, directory)
            else:
                self.write_rdb(chance, directory)
            socket = directory / "s.sock"
            lines = [f"port {free_port()}", "bind 127.0.0.1", f"unixsocket {socket}", f"dir {directory}", 'save ""']
            lines += [f"appendonly {'yes' if append_only else 'no'}", f"loadmodule {MODULE}", "crash-log-enabled yes"]
            (directory / "server.conf").write_text("\n".join([*lines, ""]))
            return self.watch(directory, number)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def write_rdb(self, chance: random.Random, directory: Path) -> None:
        """Writes a truncated or changed file. Its checksum is 0, which servers do not check."""
        if chance.random() < 0.4:
            data = self.rdb[: chance.randrange(len(self.rdb))]
        else:
            data = changed(chance, self.rdb[:-8]) + bytes(8)
        (directory / "dump.rdb").write_bytes(data)

    def write_aof(self, chance: random.Random, directory: Path) -> None:
        """Writes a truncated file, and sometimes damages its middle."""
        folder = directory / "appendonlydir"
        folder.mkdir()
        for name, data in self.aof.items():
            kept = data
            if name.endswith(".incr.aof"):
                kept = data[: chance.randrange(len(data))] if chance.random() < 0.7 else changed(chance, data)
            elif name.endswith(".rdb") and chance.random() < 0.3:
                kept = changed(chance, data[:-8]) + bytes(8)
            (folder / name).write_bytes(kept)

    def watch(self, directory: Path, number: int) -> str:
        """Runs the server; returns whether it loaded or refused the files."""
        log = directory / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(self.binary), str(directory / "server.conf")],
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=server_environment(),
            )
        try:
            deadline = time.monotonic() + SECONDS
            while process.poll() is None and STARTED not in (said := log.read_text(errors="replace")):
                if REFUSED[0] in said or asks_for_too_much_memory(said):
                    return "refused"
                if time.monotonic() > deadline:
                    where = keep(self.seed, number, directory)
                    raise Finding(f"file {number}: the server neither starts nor ends; kept in {where}")
                time.sleep(0.01)
            if process.poll() is None:
                process.terminate()
            process.wait(SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        said = log.read_text(errors="replace")
        if REFUSED[1] in said or asks_for_too_much_memory(said):
            return "refused"
        loaded = STARTED in said
        # A server that refuses a file exits with the status of its check of the file: 0 if the check finds no fault.
        if any(report in said for report in REPORTS) or process.returncode not in (0, 1):
            where = keep(self.seed, number, directory)
            raise Finding(f"file {number}: the server ended with {process.returncode}; kept in {where}\n{said[-3000:]}")
        return "loaded" if loaded else "refused"


def keep(seed: int, number: int, directory: Path) -> Path:
    """Copies the files of a finding."""
    where = Path(tempfile.gettempdir()) / f"qa-fuzz-{seed}-file-{number}-{os.getpid()}"
    shutil.copytree(directory, where, ignore=shutil.ignore_patterns("*.sock"), dirs_exist_ok=True)
    return where
