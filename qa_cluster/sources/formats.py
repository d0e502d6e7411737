"""Detects the format of a file from its name; if the name does not identify it, from its contents."""

from __future__ import annotations

import re
from pathlib import PurePath

from . import decoding

# Formats whose files are passed to their module as bytes. Files of all other formats are decoded to text first.
BINARY = ("pdf", "docx", "odt", "pptx", "xlsx", "epub", "eml")
FORMATS = ("rst", "markdown", "html", "roff", "text", "changelog", "ipynb", *BINARY)

_ENDINGS = {
    ".rst": "rst",
    ".rest": "rst",
    ".md": "markdown",
    ".markdown": "markdown",
    ".mkd": "markdown",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".man": "roff",
    ".roff": "roff",
    ".mdoc": "roff",
    ".pdf": "pdf",
    ".docx": "docx",
    ".odt": "odt",
    ".pptx": "pptx",
    ".pptm": "pptx",
    ".ppsx": "pptx",
    ".xlsx": "xlsx",
    ".xlsm": "xlsx",
    ".epub": "epub",
    ".eml": "eml",
    ".ipynb": "ipynb",
    ".txt": "",
    ".text": "",
}
# `gzip.1`, `printf.3posix`, `config.5ssl`. A release number such as `1.2` also matches; then the contents decide.
_MANUAL = re.compile(r"\.[1-9n][a-z]{0,6}\Z")
_CHANGELOG = re.compile(r"(change(s|log)?|news|history|releases?)([._-].*)?\Z", re.IGNORECASE)
# Names without an ending, such as README: letters, digits and dashes, or a known word followed by other characters:
# `README.Debian`.
_BARE = re.compile(r"[\w+-]+\Z|(readme|news|faq|todo|changelog|copying|install|history|authors|notes?)[.\w+-]*\Z", re.I)

_HTML = re.compile(rb"<(!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_ROFF = re.compile(rb"""^[.'](\\"|TH\s|Dd\s|SH\s|so\s|de\s|ds\s|if\s|ie\s|nr\s|\s*\n)""", re.MULTILINE)
_ROFF_TITLE = re.compile(rb"^[.'](TH|Dt|so)\s", re.MULTILINE)
_RST = re.compile(
    r"^\.\. (?:[\w:+-]+::|_[^\n]+:\s)|(?<![`\w]):[a-z][\w:+-]*:`[^`\n]+`|^(?P<over>[=*#~^-]{4,})\n[^\n]+\n(?P=over)$",
    re.MULTILINE,
)
_MARKDOWN = re.compile(r"^(?:#{1,6} \S|```|~~~)|\[[^\[\]\n]++\]\([^()\s]++\)", re.MULTILINE)
# `# command` may be a comment of a shell. So a heading with one `#` counts only if a blank line and a link follow.
_MARKDOWN_HEADING = re.compile(r"^##{1,2} [A-Z][^\n]*\n(?:\s*\n|$)|^# [A-Z][^\n]*\n\s*\n(?=[^#]*\]\()", re.MULTILINE)
_DEBIAN_CHANGELOG = re.compile(r"\A\s*[a-z0-9][a-z0-9+.-]+ \([^()\s]+\) [\w -]+; urgency=", re.IGNORECASE)
_ENTRY = re.compile(
    r"^[ \t]*+[*#=-]*+[ \t]*+(?:\S++[ \t]++)?"
    r"(?:(?:noteworthy changes in|changes in|new in|major changes|version|release)\b.*\d\.\d|v?\d++\.\d)",
    re.IGNORECASE | re.MULTILINE,
)
_SAMPLE = 64 * 1024
# The first entry of an OpenDocument or EPUB archive is its type, uncompressed.
_OPEN_TYPES = {
    b"mimetypeapplication/vnd.oasis.opendocument.text": "odt",
    b"mimetypeapplication/epub+zip": "epub",
}
_OFFICE_FOLDERS = {b"word/document": "docx", b"ppt/presentation": "pptx", b"xl/workbook": "xlsx"}


def base_name(name: str) -> str:
    """Return the name of a file without its folders and without the ending .gz."""
    last = PurePath(name).name
    return last[:-3] if last.lower().endswith(".gz") else last


def may_be_document(name: str) -> bool:
    """Return whether a file in a folder may be a document.

    Its name must have the ending of a known format, have no ending, or start with a known word, such as README. An
    ending ``.gz`` is ignored. Files whose names start with a dot are never documents.
    """
    base = base_name(name)
    if base.startswith("."):
        return False
    ending = PurePath(base).suffix.lower()
    return ending in _ENDINGS or _MANUAL.search(base) is not None or _BARE.match(base) is not None


def format_of(name: str, data: bytes) -> str:
    """Return the format of a file from its name or its contents. `data` is already unpacked."""
    base = base_name(name)
    by_name = _ENDINGS.get(PurePath(base).suffix.lower(), "")
    if by_name:
        return by_name
    if data.startswith(b"%PDF-"):
        return "pdf"
    if data.startswith(b"PK\x03\x04"):
        return _office(data)
    sample = data[:_SAMPLE]
    if _HTML.search(sample[:1024]):
        return "html"
    if (_MANUAL.search(base) and _ROFF.search(sample)) or (_ROFF_TITLE.search(sample) and sample[:1] in b".'"):
        return "roff"
    return "text" if decoding.is_binary(data) else _of_text(base, decoding.decode(sample))


def _of_text(base: str, text: str) -> str:
    if _DEBIAN_CHANGELOG.match(text):
        return "changelog"
    marks = len(_RST.findall(text))
    if marks >= 2 and marks >= len(text) // 20_000:
        return "rst"
    if _CHANGELOG.match(base) and len(_ENTRY.findall(text)) >= 2:
        return "changelog"
    if len(_MARKDOWN.findall(text)) >= 3 and _MARKDOWN_HEADING.search(text):
        return "markdown"
    return "text"


def _office(data: bytes) -> str:
    head = data[: 4 * 1024]
    for mark, format in _OPEN_TYPES.items():
        if mark in head:
            return format
    if b"[Content_Types].xml" not in data:
        return "text"
    return next((format for folder, format in _OFFICE_FOLDERS.items() if folder in data), "docx")
