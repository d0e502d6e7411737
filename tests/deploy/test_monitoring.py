"""On a cluster under load, Prometheus gets a result for every query of the dashboard and for every rule."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.polling import eventually
from tests.harness.ports import free_port
from tests.harness.programs import ROOT

from .running import SECONDS, Deployed

PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "qa-cluster.json").read_text())
PANELS = {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in DASHBOARD["panels"]}
TEXT = "Ada Lovelace wrote the first program in {}. She lived in London. Charles Babbage built engine {}."

Tool = Callable[[str], str]


class Load(threading.Thread):
    """Writes documents and asks new and repeated questions until a test stops it."""

    def __init__(self, deployed: Deployed) -> None:
        super().__init__(daemon=True)
        self._deployed, self._ended, self.failed = deployed, threading.Event(), ""

    def run(self) -> None:
        with self._deployed.client() as client:
            number = 0
            while not self._ended.is_set():
                number += 1
                document = {"text": TEXT.format(1000 + number, number)}
                questions = ("Who wrote the first program?", f"Who built engine {number}?", f"Where is {number}?")
                try:
                    answers = [client.put(f"/documents/{number}", json=document)]
                    answers += [client.get("/qa", params={"question": question}) for question in questions]
                    problem = next((answer.text for answer in answers if answer.is_error), "")
                except httpx.TransportError as error:
                    problem = str(error)
                self.failed = self.failed or problem

    def stop(self) -> None:
        self._ended.set()
        self.join()


class Prometheus:
    """Debian's Prometheus with qa-cluster's configuration. It scrapes every second instead of every 15 s."""

    def __init__(self, folder: Path, tool: Tool, service: int) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._promtool = tool("promtool")
        text = (PROMETHEUS / "prometheus.yaml").read_text()
        text = text.replace("15s", "1s").replace(":8081", f":{service}")
        rules = (PROMETHEUS / "rules.yaml").read_text().replace("interval: 15s", "interval: 1s")
        (folder / "prometheus.yaml").write_text(text)
        (folder / "rules.yaml").write_text(rules)
        command = [tool("prometheus"), f"--config.file={folder / 'prometheus.yaml'}"]
        command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{self.port}"]
        with (folder / "prometheus.log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def query(self, expression: str) -> str:
        """The result in promtool's format, with a line for each series."""
        command = [self._promtool, "query", "instant", self.url, expression]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
        assert done.returncode == 0, expression + done.stderr
        return done.stdout.strip()

    def rules(self) -> list[dict[str, Any]]:
        groups = httpx.get(f"{self.url}/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    with Deployed(tmp_path_factory.mktemp("deployed")) as running:
        yield running


@pytest.fixture(scope="module")
def load(deployed: Deployed) -> Iterator[Load]:
    """A load on the cluster during the tests."""
    running = Load(deployed)
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def prometheus(
    deployed: Deployed, load: Load, tmp_path_factory: pytest.TempPathFactory, tool: Tool
) -> Iterator[Prometheus]:
    """Prometheus under load, after it has evaluated every rule."""
    made = Prometheus(tmp_path_factory.mktemp("prometheus"), tool, deployed.admin_port)
    try:
        eventually(lambda: made.query("qa_queue_seconds_p95 > 0"), SECONDS, ignore=AssertionError)
        eventually(lambda: all(rule["health"] == "ok" for rule in made.rules()), SECONDS, ignore=httpx.TransportError)
        yield made
    finally:
        made.process.terminate()
        made.process.wait()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("panel", PANELS)
def test_every_query_of_a_panel_finds_series(prometheus: Prometheus, panel: str) -> None:
    for expression in PANELS[panel]:
        query = expression.replace("$__rate_interval", "1m")
        eventually(lambda query=query: prometheus.query(query), SECONDS)  # type: ignore[misc]


@pytest.mark.timeout(600)
def test_the_values_match_the_cluster(prometheus: Prometheus, deployed: Deployed) -> None:
    assert prometheus.query("max(qa_shards)").split()[2] == str(len(deployed.ports))
    (missing,) = [rule for rule in prometheus.rules() if rule["name"] == "QaShardMissing"]
    assert not prometheus.query(missing["query"])


@pytest.mark.timeout(600)
def test_no_request_of_the_load_fails(prometheus: Prometheus, load: Load) -> None:
    assert load.is_alive()
    assert not load.failed


@pytest.mark.timeout(600)
def test_every_rule_runs_and_none_fires_under_load(prometheus: Prometheus) -> None:
    rules = prometheus.rules()
    assert len(rules) == len(re.findall(r"- (?:alert|record):", (PROMETHEUS / "rules.yaml").read_text())) > 10
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []
    for rule in rules:
        if rule["type"] == "recording":
            assert prometheus.query(rule["name"]), rule["name"]
        else:
            assert rule["state"] != "firing", rule


@pytest.mark.timeout(600)
def test_every_series_that_a_rule_names_exists(prometheus: Prometheus) -> None:
    named = {name for rule in prometheus.rules() for name in re.findall(r"\bqa_\w+", rule["query"])}
    assert len(named) > 8
    for name in named:
        eventually(lambda name=name: prometheus.query(f"count({name})"), SECONDS)  # type: ignore[misc]


@pytest.mark.timeout(600)
def test_a_query_of_an_unknown_series_finds_nothing(prometheus: Prometheus) -> None:
    assert prometheus.query("sum(rate(qa_no_such_thing_total[1m]))") == ""


def test_every_alert_passes_its_unit_test(tool: Tool) -> None:
    command = [tool("promtool"), "test", "rules", "rules.test.yaml"]
    done = subprocess.run(command, cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = re.findall(r'alertname="(\w+)"', (PROMETHEUS / "rules.test.yaml").read_text())
    assert sorted(expected) == sorted(re.findall(r"alert: (\w+)", (PROMETHEUS / "rules.yaml").read_text()))


def test_alerts_report_a_dead_shard_and_a_dead_service(prometheus: Prometheus, deployed: Deployed) -> None:
    """This test must be the last one of this file, because it breaks the cluster."""
    alerts = {rule["name"]: rule["query"] for rule in prometheus.rules()}
    deployed.processes[0].kill()
    eventually(lambda: prometheus.query(alerts["QaShardMissing"]), SECONDS)
    deployed.processes[-1].kill()
    eventually(lambda: prometheus.query(alerts["QaServiceDown"]), SECONDS)
