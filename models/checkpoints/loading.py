"""Helps all code that loads a checkpoint: requires packages, silences libraries, and shortens errors to one line.

Code in a checkpoint is never run. Without `trust_remote_code=False`, transformers asks at the terminal whether to run
it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qa_cluster.errors import ModelError

LOCAL: dict[str, bool] = {"local_files_only": True, "trust_remote_code": False}


def require_packages(what: str, extra: str, names: Sequence[str]) -> None:
    """Raise ModelError, which says what to install, if one of the packages `names` is missing. `what` is the work that
    needs the packages, and `extra` is the extra of qa-cluster that installs them.
    """
    if missing := [name for name in names if find_spec(name) is None]:
        raise ModelError(f"{what} needs {', '.join(missing)}: pip install 'qa-cluster[{extra}]' -c constraints.txt")


def one_line(error: Exception) -> str:
    """Return the type of an error and the start of its text, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def require_weights(info: dict[str, Any], source: str) -> None:
    """Raise ModelError if the checkpoint `source` lacks weights of the network, because transformers fills such weights
    with random numbers. `info` is the loading info of transformers.
    """
    if missing := sorted(info["missing_keys"]):
        raise ModelError(f"weights of {source!r} lack {len(missing)} tensors, for example {missing[0]!r}")


@contextmanager
def without_bars() -> Iterator[None]:
    """Suppress the progress bars of transformers until the `with` block ends."""
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            logging.enable_progress_bar()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppress the progress bars and warnings of transformers until the `with` block ends."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with without_bars():
            yield
    finally:
        logging.set_verbosity(verbosity)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
