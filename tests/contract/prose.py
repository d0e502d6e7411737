"""The prose of the repository: Markdown, comments, docstrings and messages, with their lines.

`prose` masks all other characters of a file as NUL and keeps line breaks. A phrase that continues in the next comment
line or string literal is therefore found, and code between two comments separates them.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator

# Comments and string literals of C, JavaScript and Lua. Literals come first, so that "//" in a literal starts no
# comment.
_TOKENS = {
    "c": re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL),
    "js": re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|`(?:\\.|[^`\\])*`|//[^\n]*|/\*.*?\*/', re.DOTALL),
    "lua": re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|--[^\n]*', re.DOTALL),
    "hash": re.compile(r'"(?:\\.|[^"\\\n])*"|(?:^|(?<=\s))#[^\n]*', re.MULTILINE),
}
_SYNTAX = {
    **dict.fromkeys((".c", ".h", ".css"), "c"),
    ".js": "js",
    ".lua": "lua",
    **dict.fromkeys((".yaml", ".toml", ".ini", ".mk", "Makefile", "Dockerfile", ".service", ".target"), "hash"),
}
# The characters around prose: quotes with their prefix, comment signs, and line breaks written as \n.
_SIGNS = re.compile(
    r"^[rbfuRBFU]{0,2}(?:\"\"\"|'''|[\"'`])|(?:\"\"\"|'''|[\"'`])$|^\s*(?:#|//|/\*|--|\*)+|\\n", re.MULTILINE
)
_CODE = re.compile(r"``[^`]+``|`[^`\n]+`")
_FSTRING = getattr(tokenize, "FSTRING_MIDDLE", -1)


def _python(text: str, messages: bool) -> Iterator[tuple[int, int]]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    opens = True  # whether the token is the first of its statement: then a string is a docstring
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        begin, end = (starts[row - 1] + column for row, column in (token.start, token.end))
        literal = token.type in (tokenize.STRING, _FSTRING) and (messages or (opens and '"""' in token.string[:4]))
        if token.type == tokenize.COMMENT or literal:
            yield begin, end
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            opens = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)


def _spans(name: str, text: str, messages: bool) -> Iterator[tuple[int, int]]:
    if name.endswith(".md"):
        yield 0, len(text)
    elif name.endswith(".py"):
        yield from _python(text, messages)
    else:
        syntax = next((syntax for ending, syntax in _SYNTAX.items() if name.endswith(ending)), None)
        for found in _TOKENS[syntax].finditer(text) if syntax else ():
            if messages or found[0][0] not in "\"'`":
                yield found.span()


def prose(name: str, text: str, *, messages: bool = True) -> str:
    """Return the text of the file `name` with all code masked. Without `messages`, string literals are masked too."""
    found = []
    here = 0
    for begin, end in _spans(name, text, messages):
        gap, part = text[here:begin], text[begin:end]
        found.append(_masked(gap))
        # A literal of one word is a name, unless it continues the previous literal.
        if part[0] in "\"'`" and (gap.strip() or not here) and not re.search(r"\w\s+\w", part):
            part = _masked(part)
        part = _SIGNS.sub(lambda sign: " " * len(sign[0]), part)
        found.append(_CODE.sub(lambda code: _masked(code[0]), part))
        here = end
    found.append(_masked(text[here:]))
    return "".join(found)


def _masked(text: str) -> str:
    return re.sub(r"\S", "\0", text)
