"""Fetches a checkpoint's files from the Hugging Face hub, or says in one line why it cannot.

Every request has a time limit. What a checkpoint consists of is fetched and nothing else: no code, and pickled weights
only where there are no safetensors (they are read without running what they may contain, see `checkpoint`). With
HF_HUB_OFFLINE set the files of an earlier fetch are used; HF_ENDPOINT and HF_TOKEN are the hub's own settings.
"""

import os
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from qa_cluster.errors import ModelError

TIMEOUT_SECONDS = 10.0
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
    re.compile(r"model.*\.safetensors(\.index\.json)?"),
    re.compile(r"pytorch_model.*\.bin(\.index\.json)?"),
)


@dataclass(frozen=True, slots=True)
class HubId:
    """A checkpoint on the hub: `owner/name`, and a branch, tag or commit of it."""

    name: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> "HubId | None":
        """Read `owner/name` or `owner/name@revision`; None when it is neither.

        >>> HubId.parse("deepset/tinyroberta-squad2@main")
        HubId(name='deepset/tinyroberta-squad2', revision='main')
        """
        found = _ID.fullmatch(text)
        return None if found is None else cls(found[1], found[2])


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of one commit, in a folder of the hub's cache."""

    folder: Path
    commit: str

    @property
    def short_commit(self) -> str:
        """What of the commit is shown."""
        return self.commit[:_COMMIT_DIGITS]


def fetch(wanted: HubId) -> Snapshot:
    """Fetch a checkpoint's files; ModelError says what is wrong, and with whom."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled

    # not the library's own reading of it, which is that of the time of its import
    endpoint = os.environ.get("HF_ENDPOINT") or None
    try:
        api = HfApi(endpoint=endpoint)
        info = api.model_info(wanted.name, revision=wanted.revision, timeout=TIMEOUT_SECONDS)
        names = [file.rfilename for file in info.siblings or []]
        folder = _download(wanted, _chosen(names), endpoint=endpoint)
        return Snapshot(folder, folder.name)
    except OfflineModeIsEnabled:
        return _cached(wanted)
    except ModelError:
        raise
    except Exception as error:  # the hub's errors, its transport's and the file system's have no common base
        raise _refused(wanted, error) from error


def _chosen(names: list[str]) -> list[str]:
    safe = [name for name in names if _SAFE.fullmatch(name)]
    weights = safe or [name for name in names if _PICKLED.fullmatch(name)]
    return [name for name in names if name in _FILES] + weights


def _download(wanted: HubId, files: list[str], endpoint: str | None) -> Path:
    from huggingface_hub import snapshot_download

    if not files:
        raise ModelError(f"{wanted.name!r} on the hub holds no checkpoint that transformers can read")
    bars: Any = import_module("huggingface_hub.utils")
    silent = bars.are_progress_bars_disabled()
    bars.disable_progress_bars()
    try:
        return Path(
            snapshot_download(
                wanted.name,
                revision=wanted.revision,
                allow_patterns=files,
                etag_timeout=TIMEOUT_SECONDS,
                endpoint=endpoint,
            )
        )
    finally:
        if not silent:
            bars.enable_progress_bars()


def _cached(wanted: HubId) -> Snapshot:
    from huggingface_hub import snapshot_download

    try:
        files = list(_FILES)  # complete without its weights: loading tells if those are missing
        folder = Path(
            snapshot_download(wanted.name, revision=wanted.revision, allow_patterns=files, local_files_only=True)
        )
    except Exception as error:  # as above
        raise ModelError(
            f"{wanted.name!r} was never fetched and HF_HUB_OFFLINE is set: unset it, or name a local folder"
        ) from error
    return Snapshot(folder, folder.name)


def _refused(wanted: HubId, error: Exception) -> ModelError:
    from huggingface_hub import errors

    what = repr(wanted.name if wanted.revision is None else f"{wanted.name}@{wanted.revision}")
    if isinstance(error, errors.GatedRepoError):
        return ModelError(f"{what} is given only to those its owners let in: ask on its page, then set HF_TOKEN")
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelError(f"{what}: the hub has the checkpoint but not that branch, tag or commit")
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelError(
            f"{what} is neither a local folder nor a checkpoint on the hub, or it is private: set HF_TOKEN"
        )
    if isinstance(error, errors.HfHubHTTPError):
        return ModelError(f"the hub refused to give {what}: {_line(error)}")
    return ModelError(
        f"{what} is no local folder, and the hub cannot be reached within {TIMEOUT_SECONDS:g} s: {_line(error)}"
    )


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
