"""Extracts text in a separate process with limits of memory and time, because files may be damaged or hostile.

One process extracts many files. If the process exceeds a limit, it is killed. If the process is killed or dies, only
the current file fails, and a new process reads the next file. Output of parsers is discarded.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Self

import orjson

from qa_cluster.errors import InputTooLong, InvalidInput
from qa_cluster.security.passwords import without_passwords

from ..extracted import Extracted, NoText, ParagraphPlace, Section
from .budget import CUT, MAX_HITS, MIB, READY, Budget, Cost, Hits

MAX_FILE_BYTES = 64 * MIB
MAX_REPLY_BYTES = 64 * MIB
FILES_PER_PROCESS = 1000
MAX_REMARKS = 10_000
# A process whose address space exceeds this size is replaced, because parsers rarely free the memory that they have
# used.
MAX_ADDRESS_SPACE = 512 * MIB
# The time limit for the start of a process, which does not count against the limits of a file. A busy machine may need
# seconds.
START_SECONDS = 60.0
_CHUNK = 1 << 16
_CHILD = "qa_cluster.sources.process.child"
_ERRORS = {"InputTooLong": InputTooLong, "NoText": NoText}


class _LimitExceeded(Exception):
    """Reading a file exceeded a limit. The message is a verb phrase about reading: `took too much memory`."""


class Extractor:
    """Extracts files, one at a time.

    Attributes:
        counts: the number of files whose text was extracted, for each format.
        remarks: pairs of the name of a file and a text that says what was guessed, replaced or left out in the file; at
            most `MAX_REMARKS` pairs.
        on_page: called several times a second with the current page and the number of pages, for files with pages.

    >>> with Extractor() as extractor:
    ...     extractor.extract(b"Cats\\n====\\n\\nThey  purr.", "cats.rst")[1].text
    'Cats\\n\\nThey purr.'
    """

    def __init__(self, *, forced: str = "", budget: Budget | None = None) -> None:
        """Create an extractor. The process starts with the first file.

        Args:
            forced: the format of all files, one of `formats.FORMATS`; empty: the format of each file is detected.
            budget: computes the limits of a file; None means the defaults of `Budget`.
        """
        self.forced = forced
        self.max_bytes = MAX_FILE_BYTES
        self.counts: Counter[str] = Counter()
        self.remarks: list[tuple[str, str]] = []
        self.on_page: Callable[[int, int], None] = lambda page, pages: None
        self._budget = budget if budget is not None else Budget()
        self._hits = Hits()
        self._process: subprocess.Popen[bytes] | None = None
        self._served = 0
        self._killed = False
        # What the process has reported about the current file.
        self._format = ""
        self._cost = Cost(0, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process. The next call of `extract` starts a new process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def kill(self) -> None:
        """Kill the process from another thread. The current file and all later files fail."""
        self._killed = True
        process = self._process
        if process is not None:
            process.kill()

    def extract(self, data: bytes, name: str) -> tuple[str, Extracted]:
        """Return the format of a file and its text.

        Raises:
            InvalidInput: as in `extract.extract`; or the process did not start; or reading the file exceeded a limit or
                ended the process; or `kill` was called.
            InputTooLong: as in `extract.extract`; or the file has more than `MAX_FILE_BYTES` bytes.
        """
        if len(data) > MAX_FILE_BYTES:
            raise InputTooLong(f"has {len(data)} bytes, the limit for one file is {MAX_FILE_BYTES}")
        if self._process is None:
            self._process, self._served = self._started(), 0
            self._wait_ready(self._process)
        if self._killed:
            self.close()
            raise InvalidInput("reading it was cancelled")
        self._served += 1
        cut = self._hits.cut
        self._format, self._cost = "", self._budget.cost(len(data), is_cut="" in cut)
        try:
            reply = self._answer(self._process, data, name, cut)
            if reply.get("error") == "MemoryError":
                raise _LimitExceeded("took too much memory")
        except _LimitExceeded as limit:
            self.close()
            self._hits.add(self._format)
            raise InvalidInput(self._explained(str(limit), len(data), is_cut=self._format in cut)) from limit
        except BaseException:
            self.close()
            raise
        if self._served >= FILES_PER_PROCESS or reply["address_space"] > MAX_ADDRESS_SPACE:
            self.close()
        if "error" in reply:
            raise _ERRORS.get(reply["error"], InvalidInput)(reply["message"])
        self.counts[reply["format"]] += 1
        self.remarks += [(name, remark) for remark in reply["remarks"]][: MAX_REMARKS - len(self.remarks)]
        return reply["format"], _extracted(reply)

    def _explained(self, limit: str, size: int, *, is_cut: bool) -> str:
        what = f"reading it as {self._format}" if self._format else "detecting its format"
        limits = f"{self._cost.seconds:g} s of processor time and {self._cost.mib} MiB"
        if not is_cut:
            return f"{what} {limit}; the limits for its {size} bytes are {limits}: split it or convert it to plain text"
        return (
            f"{what} {limit}; the limits are {limits}, {CUT:.0%} of the usual time, because {MAX_HITS} files of this"
            " format exceeded their limits: ingest it in a run of its own"
        )

    def _answer(self, process: subprocess.Popen[bytes], data: bytes, name: str, cut: list[str]) -> dict[str, Any]:
        """Send a request to the process and return its last answer.

        Record the format and the limits that an earlier answer reports, and pass the reported pages to `on_page`.
        `cut` has the formats whose time limit is reduced (`Hits.cut`).
        """
        about = {"name": name, "format": self.forced, "size": len(data), "budget": asdict(self._budget), "cut": cut}
        for answer in self._exchanged(process, orjson.dumps(about) + b"\n" + data, cut):
            reply: dict[str, Any] = orjson.loads(answer)
            if "pages" in reply:
                self.on_page(reply["page"], reply["pages"])
                continue
            if "seconds" not in reply:
                return reply
            self._format, self._cost = reply["format"], Cost(reply["seconds"], reply["mib"])
        raise AssertionError("the answers do not end")

    def _started(self) -> subprocess.Popen[bytes]:
        # -P: no modules are imported from the working directory, where the files may be.
        command = (sys.executable, "-P", "-m", _CHILD, str(self._budget.most_mib))
        # With a new session, an interrupt on the terminal reaches only this process, which then ends the child.
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

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the byte that a process sends when it has started.

        Raises:
            InvalidInput: the byte does not arrive within `START_SECONDS`, or the process has ended.
        """
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            ready = selector.select(START_SECONDS)
        if self._killed:
            return
        if not ready or os.read(process.stdout.fileno(), 1) != READY:
            self.close()
            raise InvalidInput(
                f"the process that reads files did not start within {START_SECONDS:g} s: free memory or processor time"
            )

    def _exchanged(self, process: subprocess.Popen[bytes], request: bytes, cut: list[str]) -> Iterator[bytes]:
        """Send a request and yield the answers without end; the caller stops after the last answer.

        Each answer is preceded by its length in eight bytes. `cut` has the formats whose time limit is reduced.

        Raises:
            _LimitExceeded: the process ended, or the limit of elapsed time is over.
            InvalidInput: an answer has more than `MAX_REPLY_BYTES` bytes.
        """
        begun = time.monotonic()
        assert process.stdin is not None
        assert process.stdout is not None
        to_child, from_child = process.stdin.fileno(), process.stdout.fileno()
        unsent, received = memoryview(request), bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(from_child, selectors.EVENT_READ)
            selector.register(to_child, selectors.EVENT_WRITE)
            while True:
                # The first answer names the format. The time limit of this format may be reduced.
                wall_seconds = self._budget.wall(is_cut=self._format in cut)
                left = begun + wall_seconds - time.monotonic()
                if left <= 0:
                    raise _LimitExceeded(f"did not end within {wall_seconds:g} s")
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
                while len(received) >= 8:
                    size = int.from_bytes(received[:8], "little")
                    if size > MAX_REPLY_BYTES:
                        raise InvalidInput(f"its text and headings have {size} bytes, the limit is {MAX_REPLY_BYTES}")
                    if len(received) < size + 8:
                        break
                    yield bytes(received[8 : size + 8])
                    del received[: size + 8]

    def _sent(self, process: subprocess.Popen[bytes], to_child: int, unsent: memoryview) -> memoryview:
        try:
            return unsent[os.write(to_child, unsent[:_CHUNK]) :]
        except BlockingIOError:
            return unsent
        except BrokenPipeError as error:
            raise self._died(process) from error

    def _died(self, process: subprocess.Popen[bytes]) -> _LimitExceeded:
        try:
            status = process.wait(10)
        except subprocess.TimeoutExpired:
            status = 0
        if status in (-signal.SIGPROF, -signal.SIGXCPU):
            return _LimitExceeded("took too much processor time")
        how = "was killed" if status == -signal.SIGKILL else f"ended its process with status {status}"
        return _LimitExceeded(f"{how}, perhaps for lack of memory")


def _extracted(reply: dict[str, Any]) -> Extracted:
    return Extracted(
        reply["title"],
        reply["text"],
        tuple(Section(start, end, tuple(path)) for start, end, path in reply["sections"]),
        tuple(ParagraphPlace(start, number) for start, number in reply["places"]),
        reply["unit"],
        reply["metadata"],
        tuple(reply["remarks"]),
    )
