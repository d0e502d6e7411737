"""The real worker, except that two words in a text end its process: python tests/harness/ending_worker.py.

No real text is known to end a worker, so tests use these words. A text with `HOLDS` blocks the interpreter in one call
of C code, like a pattern that backtracks. A text with `DIES` ends the process at once, as the kernel does when memory
runs out. The splitter's budget is 0.1 s.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[2])

HOLDS = "xyzzyholds"
DIES = "xyzzydies"


def _spring(text: str) -> None:
    if HOLDS in text:
        re.match(r"(?:a+)+b", "a" * 64)
    if DIES in text:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """Run the worker with the traps."""
    from qa_cluster.documents import sentences
    from qa_cluster.gears import worker
    from qa_cluster.gears.functions.indexing import batches

    analysed = batches.analysed

    def trapped(title, metadata, text):  # type: ignore[no-untyped-def]
        _spring(text)
        return analysed(title, metadata, text)

    batches.analysed = trapped
    sentences.BUDGET_SECONDS, sentences.BUDGET_SECONDS_PER_MILLION = 0.1, 0.0
    return worker.main()


if __name__ == "__main__":
    sys.exit(main())
