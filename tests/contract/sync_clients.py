"""Generates the synchronous clients from the asynchronous ones: ``python -m tests.contract.sync_clients``.

- `clients/rest_client.py` is `clients/async_rest_client.py` with the words of `REST_WORDS` replaced.
- `clients/cluster_client.py` runs each method of `AsyncClusterClient` in the thread of the client.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from tests.harness.programs import ROOT

CLIENTS = ROOT / "qa_cluster" / "clients"
NOTE = "# Generated from {}: change that file, then run `python -m tests.contract.sync_clients`."
REST_WORDS = {
    "async def": "def",
    "async with": "with",
    "await ": "",
    "import asyncio\n": "",
    "asyncio.sleep": "time.sleep",
    "asynchronous": "synchronous",
    "AsyncClient": "Client",
    "AsyncBaseTransport": "BaseTransport",
    "AsyncIterator": "Iterator",
    "AsyncSubmissions": "Submissions",
    "from asyncio import Future": "from concurrent.futures import Future",
    "aclose": "close",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "entries_async": "entries",
}


def rest_client(source: str) -> str:
    """The source of the synchronous client of the REST service."""
    words = re.compile("|".join(rf"\b{re.escape(word)}" for word in REST_WORDS))
    text = words.sub(lambda word: REST_WORDS[word[0]], source)
    return text.replace("\nclass Client:", f"\n{NOTE.format('async_rest_client.py')}\nclass Client:")


def cluster_client(source: str) -> str:
    """The source of the synchronous client of the cluster."""
    tree = ast.parse(source)
    imports = [
        ast.unparse(node)
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom) and ast.unparse(node) != "from asyncio import Future"
    ]
    (client,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "AsyncClusterClient")
    own = [
        node.targets[0].id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    ]
    own += [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    methods = [_method(node, source) for node in client.body if _is_call(node)]
    return "\n".join(
        [
            '"""The synchronous client of a cluster.\n',
            '>>> with ClusterClient("redis://127.0.0.1:7000") as client:',
            '...     client.put_document("ada", "Ada Lovelace wrote the first program.")',
            '...     print(client.ask("Who wrote the first program?").best.answer)',
            'Ada Lovelace\n"""\n',
            *imports,
            "from collections.abc import Iterator",
            "from concurrent.futures import Future",
            "from qa_cluster.options.documents import MAX_PAGE, entries",
            f"from .async_cluster_client import {', '.join(own)}",
            "from .client_thread import ClientThread",
            NOTE.format("async_cluster_client.py"),
            "class ClusterClient(ClientThread):",
            '    """The calls of `AsyncClusterClient`, without async and for any thread. Use it in ``with``."""\n',
            *methods,
        ]
    )


def _is_call(node: ast.stmt) -> bool:
    """Whether a statement is a public method of the asynchronous client, except opening and closing."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.decorator_list:
        return False
    return not node.name.startswith("_") and node.name not in {"open", "aclose"}


def _method(node: ast.stmt, source: str) -> str:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    lines = source.splitlines()
    head = "\n".join(lines[node.lineno - 1 : node.body[0].end_lineno]).replace("async def", "def")
    arguments = [
        *(f"{name.arg}" for name in node.args.args[1:]),
        *(f"{name.arg}={name.arg}" for name in node.args.kwonlyargs),
    ]
    if node.args.kwarg is not None:
        arguments.append(f"**{node.args.kwarg.arg}")
    given = ", ".join(arguments)
    if isinstance(node, ast.AsyncFunctionDef):
        return f"{head}\n        return self._run(self._client.{node.name}({given}))\n"
    if node.name == "submit":
        return f"{head}\n        return self._submissions.submit(self.ask, {given})\n"
    assert node.name == "list_documents", f"{node.name}: only a list of documents is iterated over"
    head = head.replace("AsyncIterator", "Iterator")
    return f"{head}\n        return entries(lambda cursor: self.document_page(cursor, limit=MAX_PAGE, {given}))\n"


def formatted(text: str) -> str:
    """Return a text without its unused imports, formatted as `make lint` requires."""
    for command in (("check", "--quiet", "--fix", "--select", "I,F401"), ("format", "--quiet")):
        name = ["--stdin-filename", str(CLIENTS / "generated.py"), "-"]
        program = [sys.executable, "-m", "ruff", *command, *name]
        text = subprocess.run(program, cwd=ROOT, input=text, capture_output=True, text=True, check=True).stdout
    return text


def generated() -> dict[Path, str]:
    """The generated files with their texts."""
    return {
        CLIENTS / f"{name}.py": formatted(make((CLIENTS / f"async_{name}.py").read_text()))
        for name, make in (("rest_client", rest_client), ("cluster_client", cluster_client))
    }


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text)
