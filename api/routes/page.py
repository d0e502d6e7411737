"""The web page for questions: its HTML, style and scripts, which load nothing from other servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
PAGE_PATHS: Mapping[str, str] = {
    "/": "index.html",
    "/page.css": "page.css",
    "/page.js": "page.js",
    **{f"/page/{name}": name for name in ("answers.js", "documents.js", "dom.js", "key.js", "states.js")},
}
_EXAMPLES = '<template id="examples"></template>'


def page_routes(examples: Sequence[str]) -> list[Route]:
    """The routes of the page; `examples` are its example questions."""
    folder = files("qa_cluster.api") / "page"
    texts = {path: (folder / name).read_text("utf-8") for path, name in PAGE_PATHS.items()}
    items = "".join(f"<li>{escape(question)}</li>" for question in examples)
    texts["/"] = texts["/"].replace(_EXAMPLES, _EXAMPLES.replace("><", f">{items}<"))

    async def page(request: Request) -> Response:
        path = request.url.path
        return Response(texts[path], media_type=_TYPES[PAGE_PATHS[path].rpartition(".")[2]], headers=PAGE_HEADERS)

    return [Route(path, page) for path in PAGE_PATHS]
