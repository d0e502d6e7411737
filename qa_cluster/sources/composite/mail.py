"""Reads e-mail (.eml): the subject is the title, header fields are metadata, and the body is an HTML tree.

Quoted text of earlier messages is included. Each of its paragraphs starts with ``> ``.
"""

from __future__ import annotations

import email
import email.policy
import re
from email.message import EmailMessage, MIMEPart
from typing import Any

from markdown_it import MarkdownIt

from qa_cluster.errors import InvalidInput

from .. import decoding
from ..extracted import Extracted, clean
from ..front_matter import limited
from ..html import parsed, write
from ..html_content import content_of
from .archive import readable
from .tree import lower_headings

# The length limit of a header field in characters. Longer fields are ignored, because they are slow to parse.
MAX_FIELD = 8 * 1024
MAX_PARTS = 1000
_MOST_NAMED = 5
_QUOTES = re.compile(r"(?:>[ ]?)+")
# The line between the text and the signature. Only this line is left out: the signature stays.
_SIGNATURE = re.compile(r"^-- ?$", re.MULTILINE)
# The rules of Markdown that are used for plain text of e-mails.
_RULES = ["blockquote", "list", "code", "paragraph", "text", "newline"]


def read(data: bytes) -> Extracted:
    """Return the text of a message: its plain text if it has one, otherwise its HTML. Remarks name the attachments."""
    with readable(".eml"):
        message = email.message_from_bytes(data, policy=email.policy.default)
    if not isinstance(message, EmailMessage) or not message.keys():
        raise InvalidInput("the .eml file has no header: it is not an e-mail")
    with readable(".eml"):
        about = _about(message)
        body = message.get_body(("plain", "html"))
        left_out = _attachments(message, body)
        found = Extracted("", "") if body is None else _body(body)
    title = about.pop("subject", "")
    return found.named(title, limited(about)).remarked(*_remarks(left_out))


def _about(message: EmailMessage) -> dict[str, Any]:
    """Return the subject, the sender, the recipients and the date of a message.

    The keys are the names of the header fields: subject, from, to, cc and date. Missing fields, fields longer than
    `MAX_FIELD`, and a date that cannot be parsed are left out.
    """
    sizes = {name.lower(): len(str(value)) for name, value in message.raw_items()}

    def field(name: str) -> Any:
        return message[name] if 0 < sizes.get(name, 0) <= MAX_FIELD else None

    date = field("date")
    moment = getattr(date, "datetime", None)
    values = {name: clean(str(field(name) or "")) for name in ("subject", "from", "to", "cc")}
    values["date"] = moment.isoformat() if moment is not None else ""
    return {name: value for name, value in values.items() if value}


def _attachments(message: EmailMessage, body: MIMEPart | None) -> list[str]:
    """Return the file names of the parts that are not read; for a part without a file name, its type.

    `body` is the part that is read; None if no part is read. At most `MAX_PARTS` parts are examined.
    """
    found: list[str] = []
    parts: list[Any] = [message]
    for _ in range(MAX_PARTS):
        if not parts:
            break
        part = parts.pop()
        if part is body:
            continue
        if part.is_multipart() and part.get_content_maintype() == "multipart":
            # Other forms of the same text are not attachments.
            children = part.get_payload()
            is_same = part.get_content_subtype() == "alternative" and body is not None
            parts += [child for child in reversed(children) if not is_same or child is body or child.is_multipart()]
        elif part is not message:
            found.append(clean(part.get_filename() or "")[:100] or part.get_content_type())
    return found


def _remarks(left_out: list[str]) -> list[str]:
    if not left_out:
        return []
    more = len(left_out) - _MOST_NAMED
    names = ", ".join(left_out[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return [f"attachments were left out: {names}"]


def _body(part: Any) -> Extracted:
    data = part.get_payload(decode=True) or b""
    label = part.get_content_charset() or ""
    text = decoding.decode_as(data, label) if label and label != "us-ascii" else None
    remarks: tuple[str, ...] = ()
    if text is None:
        text, remarks = decoding.decode_with_remarks(data) if data else ("", ())
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if part.get_content_subtype() == "html":
        root = content_of(parsed(text)).element if text.strip() else None
    else:
        root = parsed(f"<html><body>{_html_of(text)}</body></html>")
    if root is None:
        return Extracted("", "", remarks=remarks)
    _mark_quotes(root)
    lower_headings(root)
    return write(root, "", is_page=False, unit="").remarked(*remarks)


def _html_of(text: str) -> str:
    """Convert plain text to HTML with paragraphs, lists and quotes."""
    lines: list[str] = []
    before = ""
    for line in _SIGNATURE.sub("", text).split("\n"):
        found = _QUOTES.match(line)
        quotes = found[0].replace(" ", "") if found else ""
        if quotes != before:  # the end of a quote is the end of a paragraph
            lines.append("")
        lines.append(line)
        before = quotes
    parser = MarkdownIt("zero").enable(_RULES)
    return str(parser.render("\n".join(lines)))


def _mark_quotes(root: Any) -> None:
    """Start each paragraph of quoted text with ``> ``."""
    for block in root.iter("blockquote", "p", "div", "li"):
        is_quoted = block.tag == "blockquote" or next(block.iterancestors("blockquote"), None) is not None
        if is_quoted and (block.text or "").strip():
            block.text = f"> {block.text.lstrip()}"
