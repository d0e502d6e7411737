"""The shard worker's process: ``python -m qa_cluster.gears.worker``, started by the native module only.

The program prepares its own process (descriptors, death signal, logging). Then it reads the start line from the control
socket on descriptor 3, and runs the service (`process/service.py`). When the control socket closes, the server has
ended, and the process ends at once.

Its most important threads are:

- the main thread with the event loop, which runs qa-cluster's own functions;
- asyncio's helper threads, which do long steps of qa-cluster's own functions, such as indexing;
- the threads of each device (`CPU`, `GPU:0` and so on), which run models;
- the threads that load models;
- the threads of user functions;
- a thread with a second event loop, which runs the coroutines of user functions;
- a thread for each child process (inference worker or model process), which reads the replies of the child process;
- the thread of the heartbeat.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import resource
import signal
import socket
import sys

CONTROL_FD = 3
MAX_START_LINE = 65536
START_TIMEOUT_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1

logger = logging.getLogger(__name__)


def prepare_process() -> None:
    """Close all descriptors except the standard ones and the control socket. Make the kernel kill the process when its
    parent ends.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.closerange(CONTROL_FD + 1, limit if limit != resource.RLIM_INFINITY else 1 << 20)
    os.set_inheritable(CONTROL_FD, False)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # one thread, because numpy's thread pool would compete with the model runtime
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # below the default of 5 ms, so that model threads get the interpreter lock soon while functions use the event loop
    sys.setswitchinterval(0.0005)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def read_start_line(control: socket.socket) -> bytes:
    """Return the module's first line; empty if the module has closed the socket.

    Raises TimeoutError if the module sends nothing for `START_TIMEOUT_SECONDS`.
    """
    control.settimeout(START_TIMEOUT_SECONDS)
    line = b""
    while not line.endswith(b"\n") and len(line) < MAX_START_LINE:
        data = control.recv(1)
        if not data:
            return b""
        line += data
    control.settimeout(None)
    return line


def main() -> int:
    """Run the worker until its shard ends, then end the process.

    The function returns an exit status only if the worker cannot start: 2 if descriptor 3 is missing, 0 if the module
    closes the control socket before it sends the start line.
    """
    try:
        os.fstat(CONTROL_FD)
    except OSError:
        print(f"the worker is started by the native module: descriptor {CONTROL_FD} is not a socket", file=sys.stderr)
        return 2
    prepare_process()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    control = socket.socket(fileno=CONTROL_FD)
    line = read_start_line(control)
    if not line:
        return 0
    _serve(line, control)
    logging.shutdown()
    sys.stdout.flush()
    # a normal exit would wait for the runtimes' threads, but the shard has ended, so no clean-up is needed
    os._exit(0)


def _serve(line: bytes, control: socket.socket) -> None:
    gc.disable()  # the imported modules are never freed, and collecting them would take an eighth of the start time
    import asyncio

    import uvloop

    from qa_cluster.errors import ConfigError, ProtocolError

    from .process.service import WorkerService
    from .shard.shard import Start

    gc.freeze()
    gc.enable()
    try:
        start = Start.parse(line)
        start.check()
    except (ConfigError, ProtocolError) as error:
        logger.error("%s", error)
        os._exit(1)  # the module starts another worker, with a growing delay

    async def serve() -> None:
        await WorkerService(start, control).run()

    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    served = loop.create_task(serve())
    while not served.done():
        try:
            loop.run_until_complete(served)
        except (SystemExit, KeyboardInterrupt) as error:  # raised by a task that a function started
            if served.done():
                raise
            logger.error("a function raised %s: ignored", type(error).__name__)
    served.result()


if __name__ == "__main__":
    sys.exit(main())
