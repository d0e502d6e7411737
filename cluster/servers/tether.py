"""Runs a program that must not outlive its parent process: ``tether.py PARENT_PID SIGNAL PROGRAM ARG..``.

On Linux, the kernel sends SIGNAL to the program when its parent dies in any way (PR_SET_PDEATHSIG, which survives
exec). On other systems, the parent must stop the program. This file imports nothing from the package, so that it starts
within milliseconds.
"""

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel to send the signal to this process when its parent dies. Then replace this process by
    the program.
    """
    parent, number, program = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the call of prctl, so the kernel sends no signal
        sys.exit(1)
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
