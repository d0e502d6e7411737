"""A web site on this machine."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PAGE = "<html><h1>Ré</h1><p>Words.</p></html>"


class WebSite:
    """A server on this machine: for each path, a status, headers and a body, or a function that writes the reply."""

    def __init__(self) -> None:
        self.replies: dict[str, Any] = {}
        self.asked: list[str] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.asked.append(self.path)
                reply = owner.replies.get(self.path, (404, {}, b""))
                if callable(reply):
                    reply(self)
                    return
                status, headers, body = reply
                self.send_response(status)
                for name, value in {"content-length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def page(
        self, path: str, body: str | bytes = PAGE, kind: str = "text/html", status: int = 200, **more: str
    ) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.replies[path] = (status, {"content-type": kind, **more}, data)

    def sitemap(self, path: str, *urls: str, root: str = "urlset") -> None:
        places = "".join(f"<url><loc>{url}</loc></url>" for url in urls)
        self.page(path, f'<{root} xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{places}</{root}>', "text/xml")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
