"""Runs a program that must not outlive the process that asked for it: ``tether.py PARENT_PID SIGNAL PROGRAM ARG..``.

The kernel sends SIGNAL to the program when its parent dies, however it dies (Linux, PR_SET_PDEATHSIG; the setting
survives the exec). Elsewhere only an orderly stop ends it. A file of its own without imports of the package, to start
in milliseconds.
"""

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent, then become the program."""
    parent, number, program = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        sys.exit(1)
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
