"""Fetches a reader or an encoder that is published as one file, and checks the file's SHA-256.

A *release file* is a tar archive with the files of a model folder at its top level: `manifest.json`, `tokenizer.json`,
and the ONNX file, which may be compressed with gzip. The checksum protects the contents. So the file may come from any
server and through any redirect.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import httpx

from qa_cluster.errors import ConfigError, InvalidInput
from qa_cluster.reading.bundled import PACKED_FILE
from qa_cluster.reading.manifest import MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE
from qa_cluster.vectors.encoder_manifest import ENCODER_FILE

from .limited import limited_parts

MAX_RELEASE_BYTES = 1 << 30
RELEASE_FILES = frozenset({MANIFEST_FILE, TOKENIZER_FILE, MODEL_FILE, PACKED_FILE, ENCODER_FILE, "MODEL_CARD.md"})
MAX_REDIRECTS = 5
# Time limits in seconds: for the whole file, and for the wait for the next bytes of the file.
RELEASE_SECONDS = 3600.0
_SILENT_SECONDS = 30.0
_SHA256 = "sha256="
_HEX = frozenset("0123456789abcdef")


def release_of(url: str) -> tuple[str, str]:
    """Divide ``URL#sha256=HEX`` into the URL and the checksum.

    Raises ConfigError if the URL does not start with https:// or http://, or if the checksum is missing or does not
    have 64 hexadecimal digits.

    >>> release_of("https://models.test/accurate.tar#sha256=" + "0" * 64)[0]
    'https://models.test/accurate.tar'
    """
    address, _, fragment = url.strip().partition("#")
    digest = fragment.removeprefix(_SHA256).lower()
    if not address.startswith(("https://", "http://")):
        raise ConfigError(f"the URL of a release file must start with https:// or http://, got {url[:200]!r}")
    if not fragment.startswith(_SHA256) or len(digest) != 64 or not _HEX.issuperset(digest):
        raise ConfigError(
            f"{address[:200]}: the checksum is missing or does not have 64 hexadecimal digits: end the URL with"
            " #sha256=HEX, the checksum that the publisher of the file states"
        )
    return address, digest


def fetch_release(url: str, folder: Path, on_progress: Callable[[int, int | None], None]) -> None:
    """Fetch a release file, and unpack it into the new folder `folder`.

    The folder is created only when all files are unpacked, so it is never incomplete.

    Args:
        url: ``URL#sha256=HEX``.
        on_progress: receives the number of received bytes, and the size of the file or None if the size is unknown.

    Raises:
        ConfigError: `release_of` does not accept the URL, or `folder` exists.
        InvalidInput: the file cannot be fetched, has a different checksum, or is not a release file.
        InputTooLong: the file has more than `MAX_RELEASE_BYTES`.
    """
    address, digest = release_of(url)
    if folder.exists():
        raise ConfigError(f"{str(folder)!r} exists: name a new folder with --to")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as made:
        with tempfile.TemporaryFile(dir=made) as file:
            found = _download(address, file, on_progress)
            if found != digest:
                raise InvalidInput(
                    f"{address}: the file has the SHA-256 {found}, expected {digest}: it is damaged, or is"
                    " a different file"
                )
            file.seek(0)
            unpacked = Path(made) / "files"
            _unpack(file, unpacked, address)
        os.replace(unpacked, folder)


def _download(url: str, target: BinaryIO, on_progress: Callable[[int, int | None], None]) -> str:
    """Fetch the file at an address, and write it to `target`. Return the SHA-256 of the file in hexadecimal digits."""
    started, digest, size = time.monotonic(), hashlib.sha256(), 0
    try:
        with (
            httpx.Client(follow_redirects=True, max_redirects=MAX_REDIRECTS, timeout=_SILENT_SECONDS) as client,
            client.stream("GET", url, headers={"accept-encoding": "identity"}) as response,
        ):
            if response.status_code != 200:
                raise InvalidInput(f"{url}: the server answered with status {response.status_code}")
            length = response.headers.get("content-length", "")
            total = int(length) if length.isdecimal() else None
            for part in limited_parts(
                response, url, max_bytes=MAX_RELEASE_BYTES, started=started, seconds=RELEASE_SECONDS
            ):
                size += len(part)
                digest.update(part)
                target.write(part)
                on_progress(size, total)
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
        raise InvalidInput(f"{url}: cannot be fetched: {type(error).__name__}: {error}") from error
    return digest.hexdigest()


def _unpack(file: BinaryIO, folder: Path, url: str) -> None:
    """Write the files of the tar archive `file` to the new folder `folder`. `url` is the address of the archive, for
    errors.

    Raises InvalidInput if `file` is not a tar archive, unpacks to more than `MAX_RELEASE_BYTES`, or contains something
    other than the files of a model.
    """
    folder.mkdir()
    size = 0
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                if not member.isfile() or member.name not in RELEASE_FILES:
                    raise InvalidInput(
                        f"{url}: contains {ascii(member.name)[:100]}; a release file contains only files named"
                        f" {', '.join(sorted(RELEASE_FILES))}"
                    )
                size += member.size
                if size > MAX_RELEASE_BYTES:
                    raise InvalidInput(f"{url}: unpacks to more than {MAX_RELEASE_BYTES} bytes, the limit")
                source = archive.extractfile(member)
                assert source is not None
                with source, (folder / member.name).open("wb") as target:
                    shutil.copyfileobj(source, target)
    except (tarfile.TarError, EOFError) as error:
        raise InvalidInput(f"{url}: is not a tar archive: {error}") from error
