"""The web page for questions, and the widget for other sites. All files come from this service.

The widget is one script that sites load from `/widget.js`. The service builds the script from files of the page and
from the widget's own files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..http.messages import has_version
from .branding import Logo

PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
# The image may be SVG with a script. If a browser opens the image as a page, these headers stop scripts and requests.
_LOGO_HEADERS = PAGE_HEADERS | {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "cache-control": "no-cache",
}
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_MODULES = (
    *("answers.js", "documents.js", "dom.js", "feedback.js", "found.js", "headings.js"),
    *("key.js", "messages.js", "passage.js", "rows.js", "start.js", "states.js", "typing.js"),
)
_FILES: Mapping[str, str] = {
    "/": "index.html",
    "/page.css": "page.css",
    "/page.js": "page.js",
    **{f"/page/{name}": name for name in _MODULES},
}
LOGO_PATH = "/logo"
WIDGET_PATH = "/widget.js"
PAGE_PATHS = (*_FILES, LOGO_PATH, WIDGET_PATH)
_WIDGET_PARTS = (
    "dom.js",
    "passage.js",
    "found.js",
    "headings.js",
    "rows.js",
    "feedback.js",
    "messages.js",
    "widget_view.js",
    "widget.js",
)
_WIDGET_SECONDS = 3600
_YEAR = 365 * 24 * 3600
_EXAMPLES = '<template id="examples"></template>'
_LOGO = "<!--logo-->"
_ICON = "data:,"


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the page in the form in which the service sends it. `version` is a hash of its content."""

    body: bytes
    media_type: str
    headers: Mapping[str, str]
    version: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "version", sha256(self.body).hexdigest()[:16])

    def respond(self, request: Request) -> Response:
        """Return the file, or 304 if the client already has this version."""
        headers = {**self.headers, "etag": f'"{self.version}"'}
        if has_version(request.scope, headers["etag"]):
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.media_type, headers=headers)


def page_routes(examples: Sequence[str], title: str = "qa-cluster", logo: Logo | None = None) -> list[Route]:
    """Return the routes of the page and of the widget.

    Args:
        examples: example questions of the page.
        title: the name on the page.
        logo: the image next to the name; None: no image.
    """
    found = {
        path: StaticFile(_text(name).encode(), _TYPES[name.rpartition(".")[2]], PAGE_HEADERS)
        for path, name in _FILES.items()
    }
    page = _page(examples, title, has_logo=logo is not None).encode()
    found["/"] = StaticFile(page, "text/html", PAGE_HEADERS)
    if logo is not None:
        found[LOGO_PATH] = StaticFile(logo.body, logo.media_type, _LOGO_HEADERS)
    widget = StaticFile(widget_script().encode(), "text/javascript", {})
    return [*(Route(path, _serve(file)) for path, file in found.items()), Route(WIDGET_PATH, _serve_widget(widget))]


def _serve(file: StaticFile) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        return file.respond(request)

    return respond


def _serve_widget(widget: StaticFile) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of the widget.

    If the parameter `v` of the address is the version of the script, browsers cache the script for a year. Otherwise,
    browsers cache it for an hour.

    Pages of all origins may load the script. `Vary` separates cached copies with and without CORS headers.
    """

    async def respond(request: Request) -> Response:
        is_version = request.query_params.get("v") == widget.version
        headers = {
            "x-content-type-options": "nosniff",
            "cross-origin-resource-policy": "cross-origin",
            "vary": "Origin",
            "cache-control": f"public, max-age={_YEAR}, immutable"
            if is_version
            else f"public, max-age={_WIDGET_SECONDS}",
        }
        response = widget.respond(request)
        response.headers.update(headers)
        return response

    return respond


def _page(examples: Sequence[str], title: str, *, has_logo: bool) -> str:
    items = "".join(f"<li>{escape(question)}</li>" for question in examples)
    page = _text("index.html").replace(_EXAMPLES, _EXAMPLES.replace("><", f">{items}<"))
    page = page.replace(">qa-cluster<", f">{escape(title)}<")
    if has_logo:
        page = page.replace(_LOGO, f'<img src="{LOGO_PATH}" alt="">').replace(f'href="{_ICON}"', f'href="{LOGO_PATH}"')
    return page.replace(_LOGO, "")


def widget_script() -> str:
    """Return the widget as one script: a function with its modules, without imports and exports, and its style
    as text.
    """
    modules = "".join(_compact(_text(name)) for name in _WIDGET_PARTS)
    style = json.dumps(" ".join(filter(None, map(str.strip, _text("widget.css").splitlines()))))
    return f'"use strict";\n(() => {{\nconst STYLE = {style};\n{modules}}})();\n'


def _compact(module: str) -> str:
    """Return a module without imports, exports, comments, empty lines and indentation."""
    without = re.sub(r'^import \{[^}]*\} from "[^"]+";$', "", module, flags=re.MULTILINE)
    without = re.sub(r"^export ", "", without, flags=re.MULTILINE)
    return re.sub(r"^\s*(?://.*)?\n|^[ ]+", "", without, flags=re.MULTILINE)


def _text(name: str) -> str:
    return (files("qa_cluster.api") / "page" / name).read_text("utf-8")
