"""Builds the native module into the wheel; everything else is in pyproject.toml."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution


class BuildWithModule(build_py):
    """Compiles `native/` with make and a C compiler and puts the library beside the Python files."""

    def run(self) -> None:
        """Build the Python files, then the module (an editable install uses the checkout's `native/build`)."""
        if self.editable_mode:
            super().run()
            return
        # A checkout that was built before holds files there that may have been moved or removed since.
        shutil.rmtree(Path(self.build_lib) / "qa_cluster", ignore_errors=True)
        super().run()
        native = Path(__file__).parent / "native"
        subprocess.run(["make", "-C", str(native)], check=True)
        target = Path(self.build_lib) / "qa_cluster" / "native" / "qa.so"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(native / "build" / "qa.so", target)


class PlatformDistribution(Distribution):
    """The wheel holds a compiled library, so it belongs to one platform."""

    def has_ext_modules(self) -> bool:
        """Make the wheel a platform wheel."""
        return True


setup(cmdclass={"build_py": BuildWithModule}, distclass=PlatformDistribution)
