"""A hub for tests. It answers the requests of the library `huggingface_hub` with files from folders."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


@dataclass(slots=True)
class Hub:
    """The content of the hub, and the requests to it.

    Attributes:
        models: the folder of each checkpoint, by its id.
        revisions: the names of the only commit.
        private: ids that need a token.
        gated: ids that need the permission of the owner.
        delay: seconds before each reply.
        nonsense: whether replies are invalid.
        damage: functions that change the content of files, by name.
        sizes: the reported sizes of files, by name.
        stray: additional file names in the list of every checkpoint.
        asked: the requested paths, in order.
    """

    url: str
    models: dict[str, Path] = field(default_factory=dict)
    revisions: tuple[str, ...] = ("main", "v1", COMMIT)
    private: set[str] = field(default_factory=set)
    gated: set[str] = field(default_factory=set)
    delay: float = 0.0
    broken: bool = False
    nonsense: bool = False
    damage: dict[str, Callable[[bytes], bytes]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    stray: tuple[str, ...] = ()
    asked: list[str] = field(default_factory=list)


@contextmanager
def hub() -> Iterator[Hub]:
    """Serve a hub on a free loopback port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    served = Hub(f"http://127.0.0.1:{server.server_port}")
    server.hub = served  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        path = unquote(urlsplit(self.path).path)
        hub.asked.append(path)
        time.sleep(hub.delay)
        if hub.nonsense:
            return self._answer(200, b"<html>Log in first</html>", "text/html", {})
        if hub.broken:
            return self._refuse(503, None, "out of order")
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            name, rest = "/".join(parts[2:4]), parts[4:]
            return self._api(hub, name, rest)
        name, rest = "/".join(parts[:2]), parts[2:]
        folder = hub.models.get(name)
        if folder is None or rest[:1] != ["resolve"] or not (folder / "/".join(rest[2:])).is_file():
            return self._refuse(404, "EntryNotFound", "no such file")
        return self._file(folder / "/".join(rest[2:]))

    do_HEAD = do_GET

    def log_message(self, *arguments: Any) -> None:
        """Log nothing."""

    def _api(self, hub: Hub, name: str, rest: list[str]) -> None:
        if name in hub.gated:
            return self._refuse(403, "GatedRepo", "ask for access")
        if name in hub.private or name not in hub.models:
            return self._refuse(401, "RepoNotFound", "Repository Not Found")
        if rest[:1] in (["revision"], ["tree"]) and rest[1] not in hub.revisions:
            return self._refuse(404, "RevisionNotFound", "Revision Not Found")
        files = sorted(path for path in hub.models[name].rglob("*") if path.is_file())
        names = [str(path.relative_to(hub.models[name])) for path in files]
        if rest[:1] == ["tree"]:
            return self._json(
                [
                    {"type": "file", "oid": _etag(path), "size": path.stat().st_size, "path": text}
                    for path, text in zip(files, names, strict=True)
                ]
            )
        sizes = {text: path.stat().st_size for path, text in zip(files, names, strict=True)}
        sizes |= dict.fromkeys(hub.stray, 1) | hub.sizes
        siblings = [{"rfilename": text, "size": size} for text, size in sizes.items()]
        return self._json({"id": name, "sha": COMMIT, "siblings": siblings})

    def _file(self, path: Path) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        headers = {"ETag": f'"{_etag(path)}"', "X-Repo-Commit": COMMIT}
        content = path.read_bytes()
        if self.command == "GET" and path.name in hub.damage:
            content = hub.damage[path.name](content)
        self._answer(200, content, "application/octet-stream", headers)

    def _json(self, document: Any) -> None:
        self._answer(200, json.dumps(document).encode(), "application/json", {})

    def _refuse(self, status: int, code: str | None, message: str) -> None:
        headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
        self._answer(status, json.dumps({"error": message}).encode(), "application/json", headers)

    def _answer(self, status: int, content: bytes, kind: str, headers: dict[str, str]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # the client may have disconnected
            self._send(status, content, {**headers, "Content-Type": kind})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


def _etag(path: Path) -> str:
    """An ETag like the hub's: the SHA-256 of a large file, and another hash of a small file."""
    large = path.suffix in (".safetensors", ".bin")
    return (hashlib.sha256 if large else hashlib.sha1)(path.read_bytes()).hexdigest()
