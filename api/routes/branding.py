"""The name and the image on the page: the settings `page_title` and `page_logo`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from qa_cluster.errors import ConfigError

MAX_TITLE = 100
MAX_LOGO_BYTES = 256 * 1024
_SIGNATURES = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
    "image/svg+xml": re.compile(
        rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*|<!--.*?-->\s*|<!DOCTYPE svg[^>\[]*>\s*)*<svg[\s>]",
        re.DOTALL,
    ),
}


@dataclass(frozen=True, slots=True)
class Logo:
    """An image for the page: the content of the file, and its media type."""

    body: bytes
    media_type: str


def check_title(title: str) -> None:
    """Raise ConfigError if the name of the page is empty or too long."""
    if not 0 < len(title.strip()) <= MAX_TITLE:
        raise ConfigError(
            f"setting 'page_title' has {len(title.strip())} characters, but must have from 1 to {MAX_TITLE}"
        )


def load_logo(path: str) -> Logo | None:
    """Read the image for the page; return None for an empty path.

    Raise ConfigError if the file cannot be read, is too large, or is not an image.

    The type is detected from the content, because the name of a file may be wrong.
    """
    if not path:
        return None
    try:
        with Path(path).expanduser().open("rb") as file:
            body = file.read(MAX_LOGO_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"setting 'page_logo': cannot read {path!r}: {error.strerror or error}") from error
    if len(body) > MAX_LOGO_BYTES:
        raise ConfigError(f"setting 'page_logo': {path!r} has more than {MAX_LOGO_BYTES} bytes: choose a smaller image")
    for media_type, signature in _SIGNATURES.items():
        if signature.match(body):
            return Logo(body, media_type)
    raise ConfigError(f"setting 'page_logo': {path!r} is not an image in PNG, JPEG, GIF, WebP or SVG")
