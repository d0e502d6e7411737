"""The export downloads checkpoints from a hub. An error has one line and occurs within seconds."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from qa_cluster.errors import ModelError
from qa_cluster.models.__main__ import main
from qa_cluster.models.checkpoints import hub as hub_module
from qa_cluster.models.checkpoints.hub import HubId, fetch
from qa_cluster.models.exporting.export import ExportOptions, export
from tests.model.hub_server import COMMIT, Hub, hub
from tests.model.tiny_checkpoints import FAMILIES

pytest.importorskip("transformers", reason="the export extra is not installed")
constants = pytest.importorskip("huggingface_hub.constants", reason="the export extra is not installed")
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = FAMILIES["distilbert"].save(tmp_path_factory.mktemp("hub") / "checkpoint")
    (folder / "README.md").write_text("---\nlicense: mit\n---\nA reader.\n")
    (folder / "modeling_mine.py").write_text("raise SystemExit('code was run')")
    (folder / "pytorch_model.bin").write_bytes(b"not fetched: there are safetensors")
    return folder


@pytest.fixture
def served(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with hub() as found:
        found.models["owner/reader"] = checkpoint
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        yield found


def refused(tmp_path: Path, source: str) -> str:
    """Run an export that must fail and write nothing; return its error."""
    with pytest.raises(ModelError) as raised:
        export(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".export-*"))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_ids_have_an_owner_a_name_and_an_optional_revision() -> None:
    assert HubId.parse("owner/name") == HubId("owner/name", None)
    assert HubId.parse("name@refs/pr/1") == HubId("name", "refs/pr/1")
    assert [HubId.parse(text) for text in ("", "/a", "a/b/c", "a b", "a@", "../a", "a/b@c d")] == [None] * 7


def test_a_checkpoint_is_downloaded_and_its_commit_is_recorded(served: Hub, tmp_path: Path) -> None:
    manifest = export("owner/reader@v1", tmp_path / "out", ExportOptions(runtimes=("openvino",), threads=1))
    assert manifest.model_id == "owner/reader"
    assert manifest.provenance == f"exported from owner/reader@{COMMIT[:12]}"
    assert manifest.licence == "mit"
    fetched = {path.name for path in (tmp_path / "cache").rglob("*") if path.parent.name == COMMIT}
    assert fetched == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}


def test_a_downloaded_checkpoint_is_used_offline(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fetch(HubId("owner/reader"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(served.asked)
    assert fetch(HubId("owner/reader", COMMIT)) == fetch(HubId("owner/reader")) == first
    assert len(served.asked) == asked
    with pytest.raises(ModelError, match="'owner/other' is not in the cache and HF_HUB_OFFLINE is set"):
        fetch(HubId("owner/other"))


def test_errors_distinguish_unknown_private_and_gated_checkpoints(served: Hub, tmp_path: Path) -> None:
    unknown = refused(tmp_path, "owner/none")
    assert unknown.startswith("'owner/none' is neither a local folder nor a checkpoint on the hub, or it is private")
    served.models["owner/secret"] = served.models["owner/reader"]
    served.private.add("owner/secret")
    assert "or it is private: set HF_TOKEN" in refused(tmp_path, "owner/secret")
    served.models["owner/gated"] = served.models["owner/reader"]
    served.gated.add("owner/gated")
    assert "needs access rights: request access on its page" in refused(tmp_path, "owner/gated")
    assert "not this branch, tag or commit" in refused(tmp_path, "owner/reader@v9")
    served.broken = True
    assert refused(tmp_path, "owner/reader").startswith("the hub refused 'owner/reader': ")


def test_a_checkpoint_without_weights_or_head_is_refused(served: Hub, tmp_path: Path) -> None:
    served.models["owner/masked"] = FAMILIES["distilbert"].save(tmp_path / "masked", head="ForMaskedLM")
    assert "has no question-answering head" in refused(tmp_path, "owner/masked")
    served.models["owner/empty"] = tmp_path / "empty"
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("nothing")
    assert "has no checkpoint that transformers can read" in refused(tmp_path, "owner/empty")


def test_damaged_weights_are_not_used(served: Hub, tmp_path: Path) -> None:
    served.damage["model.safetensors"] = lambda content: content[:-100] + b"\0" * 100
    message = refused(tmp_path, "owner/reader")
    assert message.startswith("model.safetensors of 'owner/reader' is damaged: its SHA-256 is ")
    served.damage.clear()
    assert refused(tmp_path, "owner/reader") == message  # the file is still in the cache
    Path(message.split("delete '")[1].split("'")[0]).unlink()
    assert fetch(HubId("owner/reader")).commit == COMMIT


def test_a_truncated_download_is_an_error(served: Hub, tmp_path: Path) -> None:
    served.damage["model.safetensors"] = lambda content: content[:1000]
    message = refused(tmp_path, "owner/reader")
    assert message.startswith("files of 'owner/reader' could not be fetched or stored: ")
    assert message.endswith(": try again")


def test_fetching_can_be_interrupted(served: Hub, tmp_path: Path) -> None:
    """The program is a process of its own, because SIGINT to a process of the test run has made this process crash."""
    released, asked = threading.Event(), threading.Event()

    def stalled(content: bytes) -> bytes:
        asked.set()
        released.wait(600)
        return content

    served.damage["model.safetensors"] = stalled
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "qa_cluster.models", "export", "owner/reader", str(tmp_path / "out")]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as program:
        try:
            assert asked.wait(120)
            program.send_signal(signal.SIGINT)
            _, errors = program.communicate(timeout=60)
        finally:
            program.kill()
            released.set()
    assert (program.returncode, "Traceback" in errors) == (130, False), errors
    assert not (tmp_path / "out").exists()


def test_a_network_too_large_for_one_file_is_not_downloaded(served: Hub, tmp_path: Path) -> None:
    served.sizes["model.safetensors"] = 140_000_000_000
    assert "bytes and is not fetched: an ONNX file holds at most 2000000000 bytes" in refused(tmp_path, "owner/reader")
    assert not [path for path in served.asked if "/resolve/" in path]


def test_only_the_known_files_of_a_checkpoint_are_downloaded(served: Hub) -> None:
    served.stray = ("../model.safetensors", "model/../../../model.safetensors", "model-of-mine.safetensors", "a.bin")
    folder = fetch(HubId("owner/reader")).folder
    assert {path.name for path in folder.rglob("*")} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "README.md",
    }


def test_a_cache_that_cannot_be_written_is_distinguished_from_a_silent_hub(
    served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file" / "cache"))
    message = refused(tmp_path, "owner/reader")
    assert message.startswith("files of 'owner/reader' could not be fetched or stored: NotADirectoryError")
    assert message.endswith("HF_HOME names the folder of these files")


def test_an_invalid_reply_is_distinguished_from_a_silent_hub(served: Hub, tmp_path: Path) -> None:
    served.nonsense = True
    message = refused(tmp_path, "owner/reader")
    assert message.startswith("the response of the hub about 'owner/reader' is invalid: JSONDecodeError")
    assert message.endswith("check HF_ENDPOINT")


def test_a_hub_that_cannot_be_reached_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        assert main(["export", "owner/reader", str(tmp_path / "out")]) == 1
    assert "'owner/reader' is not a local folder, and the hub cannot be reached within 10 s" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_slow_hub_is_an_error(served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "TIMEOUT_SECONDS", 0.3)
    served.delay = 3.0
    assert "the hub cannot be reached within 0.3 s" in refused(tmp_path, "owner/reader")
