"""Builds the native module into the wheel; everything else is in pyproject.toml."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

NATIVE = Path(__file__).parent / "native"


def need_tools() -> None:
    """If make or the C compiler is missing, end with a message that names the program and says what to install."""
    compiler = (shlex.split(os.environ.get("CC", "")) or ["cc"])[0]
    missing = [name for name in ("make", compiler) if shutil.which(name) is None]
    if missing:
        raise SystemExit(
            f"qa-cluster: cannot build the native module: not found in PATH: {', '.join(missing)}. Install make and a C"
            " compiler with the C library's headers (Debian, Ubuntu: apt-get install make gcc libc6-dev; Fedora, RHEL:"
            " dnf install make gcc glibc-devel), or install the wheel that `make wheel` makes on another machine: it"
            " needs neither."
        )


class BuildWithModule(build_py):
    """Compiles `native/` with make and a C compiler, and puts the library next to the Python files."""

    def run(self) -> None:
        """Build the Python files, then the module.

        An editable install does not build the module, because it uses the module in the checkout's `native/build`.
        """
        if self.editable_mode:
            super().run()
            return
        need_tools()
        # The folder may hold files of an earlier build that have been moved or removed since.
        shutil.rmtree(Path(self.build_lib) / "qa_cluster", ignore_errors=True)
        super().run()
        subprocess.run(["make", "-C", str(NATIVE)], check=True)
        target = Path(self.build_lib) / "qa_cluster" / "native" / "qa.so"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(NATIVE / "build" / "qa.so", target)


class OneWheelForAllPythons(bdist_wheel):
    """Tags the wheel for every Python 3 on one platform, because the server loads the library, and Python does not."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tags of the wheel: Python, ABI, platform."""
        return "py3", "none", super().get_tag()[2]


class PlatformDistribution(Distribution):
    """The wheel holds a compiled library, so it belongs to one platform."""

    def has_ext_modules(self) -> bool:
        """Make the wheel a platform wheel."""
        return True


setup(
    cmdclass={"build_py": BuildWithModule, "bdist_wheel": OneWheelForAllPythons},
    distclass=PlatformDistribution,
)
