"""A worker gets some variables of the server's environment, and the variables that an administrator adds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.processes import descendants, inference_workers
from tests.harness.servers import Server
from tests.harness.workers import FEW_TOKENS, WORKER, fake_worker

pytestmark = pytest.mark.hostile

SECRET = "a-secret-of-the-server"
# Some of these names resemble allowed names.
HIDDEN = ("QA_CLUSTER_PASSWORD", "REDISCLI_AUTH", "AWS_SECRET_ACCESS_KEY", "PATHS", "LC", "XPATH", "PYTHONSTARTUP", "X")
GIVEN = {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", "LC_MESSAGES": "C", "TZ": "UTC"}


@pytest.fixture(autouse=True)
def servers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers start with secrets and with the variables that workers need."""
    for name in HIDDEN:
        monkeypatch.setenv(name, SECRET)
    for name, value in GIVEN.items():
        monkeypatch.setenv(name, value)


def environment(pid: int) -> dict[str, str]:
    """The environment at the start of a process."""
    text = (Path("/proc") / str(pid) / "environ").read_text()
    return dict(variable.split("=", 1) for variable in text.split("\0") if variable)


def assert_clean(pids: Sequence[int], *besides: str) -> None:
    for pid in pids:
        found = environment(pid)
        assert "PATH" in found
        assert found.items() >= GIVEN.items()
        assert {name for name, value in found.items() if value == SECRET} == set(besides)


def test_secrets_of_the_server_are_not_in_the_worker(shared_binary: Path) -> None:
    with Server(shared_binary, worker=fake_worker("functions")) as server:
        server.wait_ready()
        assert_clean([server.field("worker_pid")])


def test_processes_of_the_worker_do_not_have_secrets_either(shared_binary: Path) -> None:
    settings = {"qa.inference-workers": 1, "qa.max-batch-tokens": FEW_TOKENS}
    with Server(shared_binary, settings, worker=WORKER) as server:
        server.wait_ready(180)
        eventually(lambda: server.fields("inference_workers", "inference_ready") == (1, 1), 180)
        pid = server.field("worker_pid")
        assert len(inference_workers(pid)) == 1
        assert_clean([pid, *inference_workers(pid), *descendants(pid)])


def test_an_administrator_can_add_variables(shared_binary: Path) -> None:
    settings = {"qa.worker-environment": "AWS_SECRET_ACCESS_KEY,X,NOT_SET"}
    with Server(shared_binary, settings, worker=fake_worker("functions")) as server:
        server.wait_ready()
        assert_clean([server.field("worker_pid")], "AWS_SECRET_ACCESS_KEY", "X")
        with server.client() as client:
            with pytest.raises(redis.ResponseError):
                client.config_set("qa.worker-environment", "REDISCLI_AUTH")
            assert client.config_get("qa.worker-environment") == settings


@pytest.mark.parametrize("names", ["A,,B", "A,", "A B", "1A"])
def test_an_invalid_list_of_names_prevents_the_start(shared_binary: Path, names: str) -> None:
    server = Server(shared_binary, {"qa.worker-environment": names}, worker=fake_worker("functions"))
    status, output = server.failed_start()
    assert status != 0
    assert "must be names of variables, separated by commas without blanks" in output
