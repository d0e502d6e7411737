"""Training runs resume with the same bits after a signal, a full disk or a stop by the caller."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qa_cluster.errors import InvalidInput, ModelError
from qa_cluster.models.checkpoints.record import RECORD_FILE
from qa_cluster.models.examples.data import write_examples
from qa_cluster.models.training.settings import TrainingSettings
from qa_cluster.models.training.state import STATE_FILE
from qa_cluster.models.training.train import Interrupted
from tests.model.toy_training import Silent, run, settings, toy, weights

transformers = pytest.importorskip("transformers", reason="the train extra is not installed")
torch = pytest.importorskip("torch", reason="the train extra is not installed")
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


@dataclass(frozen=True, slots=True)
class Straight:
    """An uninterrupted run."""

    settings: TrainingSettings
    losses: list[float]
    record: dict[str, Any]
    weights: dict[str, Any]


@pytest.fixture(scope="module")
def straight(base: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """An uninterrupted run of two stages with dropout: 57 steps (one and a half epochs) and 19 steps."""
    out, seen, chosen = (
        tmp_path_factory.mktemp("straight") / "out",
        Silent(),
        settings(data, "1.5:5e-3", "0.5:3e-3:0.5"),
    )
    record = run(base, out, chosen, seen)
    assert len(seen.losses) == 76
    return Straight(chosen, seen.losses, record, weights(out))


@pytest.mark.parametrize("stops", [(1, 45), (57,), (60,)], ids=str)
def test_a_resumed_run_ends_with_the_same_bits(
    straight: Straight, base: Path, tmp_path: Path, stops: tuple[int, ...]
) -> None:
    """The run is stopped in each epoch and at the end of a stage."""
    out, seen = tmp_path / "stopped", Silent()
    for number, steps in enumerate(stops):
        with pytest.raises(Interrupted, match="stopped at step"):
            run(base, out, straight.settings, seen, resume=number > 0, stopping=seen.after(steps))
        assert len(seen.losses) == steps
        assert not (out / "model.safetensors").exists()
    resumed = run(base, out, straight.settings, seen, resume=True)
    assert seen.losses == straight.losses
    found = weights(out)
    assert straight.weights.keys() == found.keys()
    assert all(torch.equal(weight, found[name]) for name, weight in straight.weights.items())
    assert resumed["losses"] == straight.record["losses"]
    assert resumed["data"] == straight.record["data"]


def test_only_the_same_run_is_resumed(base: Path, data: Path, tmp_path: Path) -> None:
    out, seen = tmp_path / "out", Silent()
    # the error occurs before the command loads a model
    with pytest.raises(InvalidInput, match="there is no run to resume"):
        run("no base", out, settings(data), seen, resume=True)
    with pytest.raises(Interrupted):
        run(base, out, settings(data), seen, stopping=seen.after(2))
    with pytest.raises(InvalidInput, match="unfinished run: resume it with --resume"):
        run(base, out, settings(data), seen)
    with pytest.raises(InvalidInput, match="batch_size was 16, is now 8"):
        run(base, out, settings(data, batch_size=8), seen, resume=True)
    changed = tmp_path / data.name
    write_examples(changed, toy(600, seed=5))
    with pytest.raises(InvalidInput, match="stages was"):
        run(base, out, settings(changed), seen, resume=True)
    content = (out / STATE_FILE).read_bytes()
    (out / STATE_FILE).write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match="cannot read"):
        run(base, out, settings(data), seen, resume=True)
    with pytest.raises(InvalidInput, match="not an empty folder"):
        run(base, base, settings(data), seen)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Make writes beyond `size` bytes of a file fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_costs_only_the_steps_since_the_last_save(base: Path, data: Path, tmp_path: Path) -> None:
    out, seen, chosen = tmp_path / "out", Silent(), settings(data, "0.3:1e-3")
    with largest_file(50_000), pytest.raises(ModelError, match=r"cannot save the run in .* MB are free: "):
        run(base, out, chosen, seen, stopping=seen.after(1))
    assert not list(out.iterdir())
    with pytest.raises(Interrupted):
        run(base, out, chosen, seen, stopping=lambda: True)
    saved = (out / STATE_FILE).read_bytes()
    with largest_file(50_000), pytest.raises(ModelError, match="the previous state is kept"):
        run(base, out, chosen, seen, resume=True, stopping=lambda: True)
    assert (out / STATE_FILE).read_bytes() == saved
    assert [path.name for path in out.iterdir()] == [STATE_FILE]
    run(base, out, chosen, seen, resume=True)
    assert (out / RECORD_FILE).is_file()


def test_a_checkpoint_that_cannot_be_written_is_not_lost(
    base: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, seen, chosen = tmp_path / "out", Silent(), settings(data, "0.1:1e-3")

    def short_of_room() -> dict[str, str]:
        limits.enter_context(largest_file(50_000))
        return {}

    with ExitStack() as limits, monkeypatch.context() as patched:
        # `versions` is the last step before the checkpoint is written
        patched.setattr("qa_cluster.models.training.train.versions", short_of_room)
        with pytest.raises(ModelError, match=r"cannot write the checkpoint .* with --resume"):
            run(base, out, chosen, seen)
    assert [path.name for path in out.iterdir()] == [STATE_FILE]
    steps = len(seen.losses)
    run(base, out, chosen, seen, resume=True)
    assert (out / "model.safetensors").is_file()
    assert len(seen.losses) == steps


def test_a_stop_during_the_measurement_works(base: Path, data: Path, tmp_path: Path) -> None:
    out, seen, chosen = tmp_path / "out", Silent(), settings(data, "0.1:1e-3", hold_out=40)
    with pytest.raises(Interrupted, match="of the measurement"):
        run(base, out, chosen, seen, stopping=lambda: seen.started == "measuring")
    record = run(base, out, chosen, seen, resume=True)
    assert record["held_out"]["scores"]["questions"] >= 40
    assert not (out / STATE_FILE).exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_save_the_run(base: Path, data: Path, tmp_path: Path, number: int, code: int) -> None:
    """SIGINT is sent to the whole process group, as by a terminal, and SIGTERM only to the command."""
    out = tmp_path / "out"
    command = [str(Path(sys.executable).with_name("qa-cluster")), "model", "train", str(base), str(out)]
    options = ["--data", f"{data}:400:1e-4", "--max-tokens", "48", "--max-question-tokens", "8", "--doc-stride", "8"]
    options += ["--threads", "1"]
    with subprocess.Popen(
        [*command, *options, "--save-minutes", "0.001"], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        assert program.stderr is not None
        said = []
        for line in program.stderr:
            said.append(line)
            if "windows_without_answer" in line:
                break
        os.killpg(program.pid, number) if number == signal.SIGINT else os.kill(program.pid, number)
        said.append(program.stderr.read())
        assert program.wait() == code, "".join(said)
    assert "To resume, repeat the command with --resume" in said[-1]
    assert (out / STATE_FILE).is_file()
    assert not (out / RECORD_FILE).exists()
