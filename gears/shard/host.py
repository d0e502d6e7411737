"""The worker's access to its shard: commands, the event loop, settings and the link that reports results of jobs.

The parts of the worker get the `Host`, or an object that contains it, as an argument. `Host` runs commands with the
worker's own rights. The scripts wing has a subclass for user functions (`ScriptHost`), with the rights of the caller,
atomic blocks and threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .link import Argument, AsyncLink, LinkPool, Reply
from .loop_watch import LoopWatch
from .shard import ShardInfo


@dataclass(eq=False)
class Host:
    """The shard that has started this worker.

    Attributes:
        reporting: the link that sends the results of jobs (`QA.DONE`).
    """

    loop: asyncio.AbstractEventLoop
    info: ShardInfo
    links: LinkPool
    watch: LoopWatch
    reporting: AsyncLink

    def execute(self, *arguments: Argument) -> Reply:
        """Run a command and wait for the raw reply. In `ScriptHost`, it has the rights of the calling user function."""
        return self.execute_own(*arguments)

    def execute_own(self, *arguments: Argument) -> Reply:
        """Run a command with the worker's own rights, even for a caller in user code."""
        return self.links.link().execute(*arguments)

    def execute_many(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """Run commands in one round trip; return the replies, with errors as objects."""
        return self.links.link().execute_many(commands)

    def execute_later(self, failed: Callable[[str], None], *arguments: Argument) -> None:
        """Send a command without waiting for its reply. The command runs before the report of the current job.

        `failed` is called with the text of an error reply.
        """

        def check(reply: Reply) -> None:
            if isinstance(reply, Exception):
                failed(str(reply))

        if threading.current_thread() is threading.main_thread():
            self.reporting.hold(check, *arguments)
        else:
            self.loop.call_soon_threadsafe(self.reporting.hold, check, *arguments)
