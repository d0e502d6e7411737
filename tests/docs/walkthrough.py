"""A reader of the documents: a folder with the files that they mention, and the cluster and service that they start.

Commands run unchanged, except that free ports replace 7000 and 8080. Workers run fewer shapes of a reader before they
are warm; the answers are the same.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

from qa_cluster.models.bundle import default_reader
from qa_cluster.reading.bundled import bundled_encoder
from tests.harness.ports import BUS_OFFSET, free_port
from tests.harness.system import UNHURRIED

from .blocks import ROOT, Block, agrees, steps

TEXT = "Ada Lovelace wrote the first program in 1843.\n"
# The question set of `eval` is about another text, so that it answers no question of the documents.
CONTEXT, QUESTION, ANSWER = "Grace Hopper found a moth in a relay.", "Who found a moth?", "Grace Hopper"
# Names under which the bundled reader is also loaded.
READERS = ("tiny", "my-reader")
COMMAND_SECONDS, START_SECONDS = 240.0, 180.0


class Walkthrough:
    """Runs blocks in `folder`; `close` ends the processes that they have started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, self._http_port = _free_node_ports(3), free_port()
        self._cluster = False
        self._service: subprocess.Popen[bytes] | None = None
        _write_files(folder)
        programs = folder / "bin"
        programs.mkdir()
        _write_make(programs / "make")
        path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        self._environment = {**os.environ, "PATH": path, "QA_HTTP_PORT": str(self._http_port), "NO_COLOR": "1"}
        self._environment |= UNHURRIED
        self._document, self._exported = "", dict[str, str]()

    def close(self) -> None:
        """End the service and the cluster."""
        if self._service is not None:
            self._service.terminate()
            self._service.wait(START_SECONDS)
        self._run("qa-cluster down")

    def run(self, block: Block) -> None:
        """Run a block; AssertionError says which command failed or printed something else.

        An exported variable is valid in all later blocks of the same document, as in one shell for each document.
        """
        if block.document != self._document:
            self._document, self._exported = block.document, {}
        self._prepare(block.text)
        if block.info == "console":
            for step in steps(block.text):
                printed = self._command(step.command, block.place)
                assert agrees(step.shown, printed), f"{block.place}: `{step.command}` printed\n{printed}"
            return
        program = self._folder / ("block.py" if block.info == "python" else "block.txt")
        program.write_text(self._here(block.text) + "\n")
        doctest = "-m doctest -o ELLIPSIS -o NORMALIZE_WHITESPACE " if block.info == "pycon" else ""
        self._command(f"python {doctest}{program.name}", block.place)

    def _prepare(self, text: str) -> None:
        """Set up what the documents assume: a cluster, a document if a block asks a question, and the service."""
        asks = re.search(r"qa-cluster|\b7000\b|\b8080\b", text)
        if asks and not self._cluster and not re.match(r"\$ (make|qa-cluster (up|demo))\b", text):
            self._command(f"qa-cluster up --first-port {self._port}", "preparation")
            self._command("qa-cluster ingest ada.txt", "preparation")
        if "8080" in text and self._service is None and "qa-cluster serve" not in text:
            self._command("qa-cluster serve &", "preparation")

    def _command(self, command: str, place: str) -> str:
        command = self._here(re.sub(r"\s+#\s.*", "", command))
        if command.endswith("&"):
            self._serve(command.removesuffix("&").split())
            return ""
        exported = re.match(r"export (\w+)=", command)
        done = self._run(f'{command} && printf %s "${exported[1]}"' if exported else command)
        if exported:
            self._exported[exported[1]] = done.stdout
        printed = done.stderr + done.stdout
        assert done.returncode == 0, f"{place}: `{command}` ended with {done.returncode}:\n{printed}"
        if command.startswith(("qa-cluster up", "qa-cluster down")):
            self._cluster = command.startswith("qa-cluster up")
        return printed

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder,
            env=self._environment | self._exported,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )

    def _serve(self, command: list[str]) -> None:
        with (self._folder / "service.log").open("wb") as log:
            self._service = subprocess.Popen(
                command, cwd=self._folder, env=self._environment | self._exported, stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                if httpx.get(f"http://127.0.0.1:{self._http_port}/readyz").is_success:
                    return
            except httpx.TransportError:
                pass
            log_text = (self._folder / "service.log").read_text()
            assert self._service.poll() is None, f"the service has ended:\n{log_text}"
            assert time.monotonic() < deadline, f"the service is not ready:\n{log_text}"
            time.sleep(0.05)

    def _here(self, text: str) -> str:
        """Return the text with the ports of this run."""
        text = re.sub(r"\b700(\d)\b", lambda found: str(self._port + int(found[1])), text)
        return re.sub(r"\b8080\b", str(self._http_port), text)


def _write_files(folder: Path) -> None:
    (folder / "ada.txt").write_text(TEXT)
    (folder / "notes.md").write_text("# Notes\n\nCharles Babbage designed the engine.\n")
    (folder / "articles").mkdir()
    (folder / "articles" / "lake.txt").write_text("Zürich lies on a lake.\n")
    (folder / "dump.jsonl").write_text(json.dumps({"id": "dump/1", "text": "The relay stood in the basement."}) + "\n")
    asked = {"id": "1", "question": QUESTION, "answers": [{"text": ANSWER, "answer_start": CONTEXT.index(ANSWER)}]}
    paragraph = {"context": CONTEXT, "qas": [asked]}
    questions = {"version": "1.1", "data": [{"title": "Moths", "paragraphs": [paragraph]}]}
    (folder / "questions.json").write_text(json.dumps(questions))
    (folder / "plain.jsonl").write_text(json.dumps({"question": QUESTION, "answers": [ANSWER], "kind": "plain"}))
    (folder / "texts").mkdir()
    (folder / "texts" / "moths.txt").write_text(CONTEXT)
    for name in READERS:
        (folder / name).symlink_to(default_reader(), target_is_directory=True)
    (folder / "my-encoder").symlink_to(bundled_encoder(), target_is_directory=True)


def _write_make(path: Path) -> None:
    """A `make` for the checkout that installs nothing: the tests run from an environment that has everything."""
    environment = Path(sys.prefix)
    options = ["-C", str(ROOT), f"VENV={environment}", "-o", str(environment / ".run")]
    path.write_text(f'#!/bin/sh\nexec {shutil.which("make")} --no-print-directory {" ".join(options)} "$@"\n')
    path.chmod(0o755)


def _free_node_ports(count: int) -> int:
    """The first of `count` consecutive ports that are free for servers of a cluster."""
    while True:
        first = free_port()
        try:
            for port in range(first, first + count):
                for number in (port, port + BUS_OFFSET):
                    with socket.socket() as probe:
                        probe.bind(("127.0.0.1", number))
        except OSError:
            continue
        return first
