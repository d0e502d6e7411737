"""Finds the native module. In a checkout, builds the module."""

from __future__ import annotations

import subprocess
from importlib.resources import files
from pathlib import Path

from qa_cluster.errors import ConfigError

_BUILD_SECONDS = 300


def packaged() -> Path:
    """Return the path that the module has in an installed package. In a checkout, the file is missing."""
    return Path(str(files("qa_cluster"))) / "native" / "qa.so"


def checkout_source() -> Path | None:
    """Return the folder of the C sources if this file is in a checkout, else None."""
    folder = Path(__file__).resolve().parents[2] / "native"
    return folder if (folder / "Makefile").is_file() else None


def find_module(module_path: str = "") -> Path:
    """Return the module to load: `module_path` if given, else the packaged module, else the module of the checkout,
    which is built first.
    """
    if module_path:
        path = Path(module_path).expanduser().resolve()
        if not path.is_file():
            raise ConfigError(f"setting 'module_path' is {module_path!r}, which is not a file")
        return path
    if packaged().is_file():
        return packaged().resolve()
    source = checkout_source()
    if source is None:
        raise ConfigError(f"the native module is missing: no file {str(packaged())!r}; set 'module_path' or reinstall")
    return build(source)


def build(source: Path) -> Path:
    """Run make in the folder `source`, and return the path of the module. Without make, return an earlier build if
    there is one. Raises ConfigError if the module cannot be built.
    """
    try:
        done = subprocess.run(
            ["make", "--no-print-directory", "-C", str(source)],
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        built = source / "build" / "qa.so"
        if built.is_file():
            return built
        raise ConfigError(
            "cannot build the native module, because make is not installed: install make and a C compiler"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"cannot build the native module: make took longer than {_BUILD_SECONDS} s") from error
    if done.returncode:
        raise ConfigError(f"cannot build the native module:\n{done.stderr.strip()[-2000:]}")
    return source / "build" / "qa.so"
