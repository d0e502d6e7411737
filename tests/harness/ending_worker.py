"""The real worker, in which some words of a text end the process: python tests/harness/ending_worker.py.

It stands for every way in which the work on a text can end a worker, of which no known one is left. A text with
`HOLDS` keeps the interpreter in one call of C code, as a pattern that backtracks does; one with `DIES` ends the process
at once, as the kernel does when memory runs out. The budget of the splitter is a tenth of a second.
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
