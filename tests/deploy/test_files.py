"""Image, Compose file and systemd units pass the checks of their tools, which do not run them (limitations.md)."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qa_cluster.config import SETTINGS
from tests.contract.test_documents import missing
from tests.harness.programs import ROOT

from .running import PASSWORD, Deployed

DEPLOY = ROOT / "deploy"
DOCKER = DEPLOY / "docker"
UNITS = DEPLOY / "systemd"
Tool = Callable[[str], str]

# Reads the file like Compose, with resolved YAML merge keys, and prints the services.
COMPOSE = """
import json, sys, yaml
from compose_spec import PyCompose
text = yaml.safe_load(open(sys.argv[1]))
text = {name: value for name, value in text.items() if not name.startswith("x-")}
PyCompose.from_yaml(yaml.safe_dump(text))
print(json.dumps(text["services"]))
"""


def passes(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_image_file_passes_its_checks(tool: Tool, tmp_path: Path) -> None:
    passes(tool("hadolint"), DOCKER / "Dockerfile")
    planted = tmp_path / "Dockerfile"
    planted.write_text((DOCKER / "Dockerfile").read_text().replace("--no-cache-dir ", ""))
    assert subprocess.run([tool("hadolint"), planted], capture_output=True, check=False).returncode == 1
    text = (DOCKER / "Dockerfile").read_text()
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK ", text, re.MULTILINE)
    (command,) = re.findall(r"^CMD (.*)$", text, re.MULTILINE)
    assert missing(shlex.join(["qa-cluster", *json.loads(command)])) == ""


def test_the_build_context_has_the_files_that_the_image_copies() -> None:
    copied = re.findall(r"^COPY (?:--\S+ )?(\S+) ", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    admitted = re.findall(r"^!(.+)$", (DOCKER / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    assert sorted(copied) == sorted(admitted)
    assert all((ROOT / name).is_file() for name in copied if not name.startswith("dist/"))


def services(tool: Tool, file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(passes(tool("python"), "-c", COMPOSE, file))
    return found


def test_the_compose_file_fits_its_specification(tool: Tool, tmp_path: Path) -> None:
    found = services(tool, DOCKER / "compose.yaml")
    assert sorted(found) == ["jobs", "mcp", "service", "setup", "shard-0", "shard-1", "shard-2"]
    assert {name: one["profiles"] for name, one in found.items() if "profiles" in one} == {
        "jobs": ["jobs"],
        "mcp": ["mcp"],
    }
    for service in found.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert missing(shlex.join(["qa-cluster", *service["command"]])) == ""
        assert {name.removeprefix("QA_").lower() for name in service["environment"]} <= set(SETTINGS)
    planted = tmp_path / "compose.yaml"
    planted.write_text((DOCKER / "compose.yaml").read_text().replace("restart: on-failure", "restarts: on-failure"))
    with pytest.raises(AssertionError):
        services(tool, planted)


@pytest.fixture
def units(tmp_path: Path) -> list[Path]:
    """Copies of the units with an existing program, and an instance of the server's unit."""
    made = []
    for unit in UNITS.iterdir():
        made.append(tmp_path / unit.name.replace("@.", "@7000."))
        made[-1].write_text(unit.read_text().replace("/opt/qa-cluster/bin/qa-cluster", "/bin/true"))
    return made


def test_systemd_accepts_the_units_and_their_sandboxing(tool: Tool, units: list[Path]) -> None:
    passes(tool("systemd-analyze"), "verify", "--man=no", *units)
    for unit in units:
        if unit.suffix == ".service":
            # The maximum is 100. A service without any sandboxing has 96.
            passes(tool("systemd-analyze"), "security", "--offline=true", "--threshold=15", unit)
    unit = next(unit for unit in units if unit.suffix == ".service")
    unit.write_text(unit.read_text().replace("NoNewPrivileges=yes", "").replace("CapabilityBoundingSet=\n", ""))
    with pytest.raises(AssertionError):
        passes(tool("systemd-analyze"), "security", "--offline=true", "--threshold=15", unit)


def test_commands_of_the_units_exist_and_are_always_restarted() -> None:
    for unit in UNITS.glob("*.service"):
        text = unit.read_text()
        for command in re.findall(r"^Exec\w+=/opt/qa-cluster/bin/(.+)$", text, re.MULTILINE):
            assert missing(command) == ""
        assert "\nRestart=always\n" in text and "\nStartLimitIntervalSec=0\n" in text
        names = re.findall(r"^Environment=QA_(\w+)=", text, re.MULTILINE)
        assert {name.lower() for name in names} <= set(SETTINGS)


@pytest.mark.timeout(600)
def test_the_health_checks_of_a_server_and_of_a_service(tmp_path: Path) -> None:
    def health(name: str, *arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-I", str(DOCKER / "health.py"), *arguments]
        done = subprocess.run(
            command, env=running.environment(name), capture_output=True, text=True, check=False, timeout=60
        )
        return done.returncode, done.stdout

    with Deployed(tmp_path, shards=1) as running:
        server = f"server-{running.ports[0]}"
        for name in (server, "service"):
            assert health(name) == (0, "")
            assert health(name, "ready") == (0, "")
        wrong = running.environment(server) | {"QA_CLUSTER_PASSWORD": PASSWORD + "!"}
        command = [sys.executable, "-I", str(DOCKER / "health.py")]
        refused = subprocess.run(command, env=wrong, capture_output=True, text=True, check=False, timeout=60)
        assert (refused.returncode, refused.stdout[:15]) == (1, "AUTH: -WRONGPAS")
        for process in running.processes:
            process.kill()
            process.wait()
        assert [health(name)[0] for name in (server, "service")] == [1, 1]
