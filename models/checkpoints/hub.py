"""Fetches the files of a checkpoint from the Hugging Face hub. An error is one line with the reason.

Every request has a timeout. This module fetches only the files of a checkpoint, never code. It fetches pickled weights
only if there is no safetensors file (`checkpoint.py` reads pickled weights without running code). A checkpoint whose
files have more than `MAX_BYTES` is refused before it is fetched. A large file, such as the weights, is used only if its
SHA-256 equals the hub's. With HF_HUB_OFFLINE set, the files of an earlier fetch are used. HF_ENDPOINT and HF_TOKEN are
settings of the hub's library.
"""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from qa_cluster.errors import ModelError

from .loading import digest_of

TIMEOUT_SECONDS = 10.0
MAX_BYTES = 5_000_000_000
"""The limit for all files of a checkpoint together, in bytes. An ONNX file holds 2 GB of float32; a checkpoint may be
larger, because its weights may be float64 and include other heads."""
_ID = re.compile(r"([A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@([\w./-]+))?")
_COMMIT_DIGITS = 12
_FILES = (
    "config.json",
    "README.md",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
)
_SAFE, _PICKLED = (
    re.compile(r"model(-[0-9]+-of-[0-9]+)?\.safetensors(\.index\.json)?"),
    re.compile(r"pytorch_model(-[0-9]+-of-[0-9]+)?\.bin(\.index\.json)?"),
)
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class HubId:
    """A checkpoint on the hub: its name, `owner/name`, and its revision: a branch, a tag or a commit (None: the default
    branch).
    """

    name: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> "HubId | None":
        """Return the parts of a text of the form `owner/name`, `name`, or one of these with `@revision`. Return None
        for any other text.

        >>> HubId.parse("deepset/tinyroberta-squad2@main")
        HubId(name='deepset/tinyroberta-squad2', revision='main')
        """
        found = _ID.fullmatch(text)
        return None if found is None else cls(found[1], found[2])


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of one commit of a checkpoint, in a folder of the cache of the hub's library."""

    folder: Path
    commit: str

    @property
    def short_commit(self) -> str:
        """The first 12 digits of the commit, for display."""
        return self.commit[:_COMMIT_DIGITS]


def fetch(wanted: HubId) -> Snapshot:
    """Fetch the files of a checkpoint that are not in the cache yet. Raises ModelError, which says what is wrong and
    what to do.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled

    # This function reads the variable itself, because the library reads it only when the library is imported.
    endpoint = os.environ.get("HF_ENDPOINT") or None
    try:
        try:
            info = HfApi(endpoint=endpoint).model_info(
                wanted.name, revision=wanted.revision, timeout=TIMEOUT_SECONDS, files_metadata=True
            )
        except OfflineModeIsEnabled:
            raise
        except Exception as error:  # errors of the hub, of the transport and of the file system have no common base
            raise _refused(wanted, error, fetching=False) from error
        files = _chosen(wanted, {file.rfilename: file.size or 0 for file in info.siblings or []})
        try:
            folder = _download(wanted, files, endpoint=endpoint)
        except Exception as error:  # errors of any type, as in the lookup
            raise _refused(wanted, error, fetching=True) from error
    except OfflineModeIsEnabled:
        folder = _cached(wanted)
    _require_whole(wanted, folder)
    return Snapshot(folder, folder.name)


def _chosen(wanted: HubId, sizes: dict[str, int]) -> list[str]:
    """Return the names of the files to fetch. `sizes` has the size in bytes of every file of the checkpoint, by name; 0
    if the size is unknown. Raises ModelError if there are no weights, or if the files are too large.
    """
    safe = [name for name in sizes if _SAFE.fullmatch(name)]
    weights = safe or [name for name in sizes if _PICKLED.fullmatch(name)]
    if not weights:
        raise ModelError(
            f"{wanted.name!r} on the hub has no checkpoint that transformers can read: it has neither "
            "model.safetensors nor pytorch_model.bin"
        )
    files = [name for name in sizes if name in _FILES] + weights
    size = sum(sizes[name] for name in files)
    if size > MAX_BYTES:
        raise ModelError(
            f"{wanted.name!r} has {size} bytes and is not fetched: an ONNX file holds at most 2000000000 bytes of "
            "float32 weights; choose a smaller checkpoint"
        )
    return files


def _download(wanted: HubId, files: list[str], endpoint: str | None) -> Path:
    """Fetch the files of one commit, and return their folder. The files are fetched one after the other, because the
    threads of the library cannot be interrupted.
    """
    from huggingface_hub import hf_hub_download

    revision = wanted.revision
    with _quietly():
        for name in files:
            place = hf_hub_download(
                wanted.name, name, revision=revision, etag_timeout=TIMEOUT_SECONDS, endpoint=endpoint
            )
            # fetch all files from the commit of the first file, even if the branch moves during the fetch
            revision = Path(place).parent.name
    return Path(place).parent


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the library's progress bars and its messages about retries."""
    bars: Any = import_module("huggingface_hub.utils")
    logger = logging.getLogger("huggingface_hub")
    silent, level = bars.are_progress_bars_disabled(), logger.level
    bars.disable_progress_bars()
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        if not silent:
            bars.enable_progress_bars()


def _cached(wanted: HubId) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(wanted.name, "config.json", revision=wanted.revision, local_files_only=True)).parent
    except Exception as error:  # the errors of the library have no common base
        raise ModelError(
            f"{wanted.name!r} is not in the cache and HF_HUB_OFFLINE is set: unset it, or name a local folder"
        ) from error


def _require_whole(wanted: HubId, folder: Path) -> None:
    """Raise ModelError if a large file is damaged. The hub's library compares only the sizes of files.

    In the cache of this library, the name of a large file is the SHA-256 that the hub states.
    """
    for file in sorted(folder.rglob("*")):
        kept = file.resolve()
        if kept.is_file() and _SHA256.fullmatch(kept.name):
            found = digest_of(kept)
            if found != kept.name:
                raise ModelError(
                    f"{file.name} of {wanted.name!r} is damaged: its SHA-256 is {found}, the hub's is {kept.name}: "
                    f"delete {str(kept)!r} and try again"
                )


def _refused(wanted: HubId, error: Exception, *, fetching: bool) -> ModelError:
    """Return the error for a failed lookup of a checkpoint or, with `fetching`, for a failed download of its files."""
    from huggingface_hub import errors

    what = repr(wanted.name if wanted.revision is None else f"{wanted.name}@{wanted.revision}")
    if isinstance(error, errors.HFValidationError):
        text = f"{what} is neither a local folder nor a valid hub id: {_line(error)}"
    elif isinstance(error, errors.GatedRepoError):
        text = f"{what} needs access rights: request access on its page, then set HF_TOKEN"
    elif isinstance(error, errors.RevisionNotFoundError):
        text = f"{what}: the hub has the checkpoint, but not this branch, tag or commit"
    elif isinstance(error, errors.RepositoryNotFoundError):
        text = f"{what} is neither a local folder nor a checkpoint on the hub, or it is private: set HF_TOKEN"
    elif isinstance(error, errors.HfHubHTTPError):
        denied = error.response is not None and error.response.status_code in (401, 403)
        remedy = "check HF_TOKEN" if denied else "try again later, or check HF_ENDPOINT"
        text = f"the hub refused {what}: {_line(error)}: {remedy}"
    elif _is_silence(error) and fetching:
        text = f"the download of {what} stopped: {_line(error)}: run the command again to resume it"
    elif _is_silence(error):
        text = (
            f"{what} is not a local folder, and the hub cannot be reached within {TIMEOUT_SECONDS:g} s: "
            f"{_line(error)}: check the network and HF_ENDPOINT, or name a local folder"
        )
    elif isinstance(error, OSError):
        remedy = "try again" if error.errno is None else "HF_HOME names the folder of these files"
        text = f"files of {what} could not be fetched or stored: {_line(error)}: {remedy}"
    else:
        text = f"the response of the hub about {what} is invalid: {_line(error)}: check HF_ENDPOINT"
    return ModelError(text)


def _is_silence(error: Exception) -> bool:
    """Return whether the hub did not respond.

    Errors of the connection are recognised by the name of their class, because different versions of the hub's library
    use different HTTP clients.
    """
    from huggingface_hub.errors import LocalEntryNotFoundError

    if isinstance(error, ConnectionError | TimeoutError | LocalEntryNotFoundError):
        return True
    return any(kind.__name__ == "TransportError" for kind in type(error).__mro__)


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()).replace("For more information check: ", "")
    return f"{type(error).__name__}: {re.sub('https://developer.mozilla.org/[^ ]*', '', text)[:200].strip()}"
