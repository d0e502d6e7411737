"""Extracts text in a separate process with limits of memory and time, because files may be damaged or hostile.

One process extracts many files. It is killed if it exceeds a limit. Then, or if it dies, only the current file fails,
and the next file gets a new process. Output of parsers is discarded.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import Any, Self

import orjson

from qa_cluster.errors import InputTooLong, InvalidInput
from qa_cluster.security.passwords import without_passwords

from .extracted import Extracted, ParagraphPlace, Section

MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_REPLY_BYTES = 64 * 1024 * 1024
MEMORY_MIB = 1536
CPU_SECONDS = 60
# Generous: a machine may be busy, and the processor time is the actual limit.
WALL_SECONDS = 300.0
FILES_PER_PROCESS = 1000
_CHUNK = 1 << 16
_CHILD = "qa_cluster.sources.child"


class Extractor:
    """Extracts files, one at a time, and counts them by format.

    >>> with Extractor() as extractor:
    ...     extractor.extract(b"Cats\\n====\\n\\nThey  purr.", "cats.rst")[1].text
    'Cats\\n\\nThey purr.'
    """

    def __init__(
        self,
        *,
        forced: str = "",
        memory_mib: int = MEMORY_MIB,
        cpu_seconds: int = CPU_SECONDS,
        wall_seconds: float = WALL_SECONDS,
    ) -> None:
        """`forced` is the format of all files, one of `formats.FORMATS`; empty: detect the format of each."""
        self.forced = forced
        self.max_bytes = MAX_FILE_BYTES
        self.counts: Counter[str] = Counter()
        self._memory_mib = memory_mib
        self._cpu_seconds = cpu_seconds
        self._wall_seconds = wall_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._served = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def extract(self, data: bytes, name: str) -> tuple[str, Extracted]:
        """Return the format of a file and its text; errors as in `extract.extract`, and InvalidInput beyond a limit."""
        if len(data) > MAX_FILE_BYTES:
            raise InputTooLong(f"{len(data)} bytes, the limit for one file is {MAX_FILE_BYTES}")
        if self._served >= FILES_PER_PROCESS:
            self.close()
        if self._process is None:
            self._process, self._served = self._started(), 0
        self._served += 1
        request = orjson.dumps({"name": name, "format": self.forced, "size": len(data)}) + b"\n" + data
        try:
            reply = orjson.loads(self._exchanged(self._process, request))
        except BaseException:
            self.close()
            raise
        if "error" in reply:
            raise (InputTooLong if reply["error"] == "InputTooLong" else InvalidInput)(reply["message"])
        self.counts[reply["format"]] += 1
        return reply["format"], _extracted(reply)

    def _started(self) -> subprocess.Popen[bytes]:
        # -P: no modules are imported from the working directory, where the files may be.
        command = (sys.executable, "-P", "-m", _CHILD, str(self._memory_mib), str(self._cpu_seconds))
        # A new session: an interrupt on the terminal reaches only this process, which ends the child.
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=without_passwords(os.environ),
            start_new_session=True,
        )
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        return process

    def _exchanged(self, process: subprocess.Popen[bytes], request: bytes) -> bytes:
        """Send a request and return the reply: its length in eight bytes, then the reply."""
        deadline = time.monotonic() + self._wall_seconds
        assert process.stdin is not None
        assert process.stdout is not None
        to_child, from_child = process.stdin.fileno(), process.stdout.fileno()
        unsent, received = memoryview(request), bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(from_child, selectors.EVENT_READ)
            selector.register(to_child, selectors.EVENT_WRITE)
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise InvalidInput(f"its text was not extracted within {self._wall_seconds:g} s")
                for key, _ in selector.select(left):
                    if key.fd == to_child:
                        unsent = self._sent(process, to_child, unsent)
                        if not unsent:
                            selector.unregister(to_child)
                        continue
                    part = os.read(from_child, _CHUNK)
                    if not part:
                        raise self._died(process)
                    received += part
                    if len(received) >= 8:
                        size = int.from_bytes(received[:8], "little")
                        if size > MAX_REPLY_BYTES:
                            raise InvalidInput(
                                f"its text and headings have {size} bytes, the limit is {MAX_REPLY_BYTES}"
                            )
                        if len(received) >= size + 8:
                            return bytes(received[8 : size + 8])

    def _sent(self, process: subprocess.Popen[bytes], to_child: int, unsent: memoryview) -> memoryview:
        try:
            return unsent[os.write(to_child, unsent[:_CHUNK]) :]
        except BlockingIOError:
            return unsent
        except BrokenPipeError as error:
            raise self._died(process) from error

    def _died(self, process: subprocess.Popen[bytes]) -> InvalidInput:
        try:
            status = process.wait(10)
        except subprocess.TimeoutExpired:
            status = 0
        if status in (-signal.SIGXCPU, -signal.SIGKILL):
            return InvalidInput(f"reading it took more than {self._cpu_seconds} s of processor time, or was killed")
        return InvalidInput(
            f"the process that read it ended with status {status}: it may exceed {self._memory_mib} MiB"
        )


def _extracted(reply: dict[str, Any]) -> Extracted:
    return Extracted(
        reply["title"],
        reply["text"],
        tuple(Section(start, end, tuple(path)) for start, end, path in reply["sections"]),
        tuple(ParagraphPlace(start, number) for start, number in reply["places"]),
        reply["unit"],
    )
