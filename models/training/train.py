"""One training run from files to a Hugging Face checkpoint: prepares the data, runs the stages, measures, writes.

While the run lasts, the output folder holds `resume.pt`; at the end it holds the checkpoint (config, safetensors,
tokenizer), `training.json` (the record) and, if examples were held out, `heldout.jsonl.gz`.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from qa_cluster.errors import InvalidInput, ModelError

from .base import Base, Machine, choose_machine, load_base, quiet_transformers, require_train_extra, versions
from .data import Dataset, load_dataset, write_examples
from .encoding import Encoder, Windows
from .holdout import hold_out
from .joining import join_contexts
from .labelled import Labelled
from .loop import StageLoop
from .measure import measure
from .progress import Watcher
from .settings import TrainingSettings
from .state import STATE_FILE, Position, load_state, restore, save_state

RECORD_FILE = "training.json"
HELD_OUT_FILE = "heldout.jsonl.gz"
_RUN_TIME_SETTINGS = ("save_minutes", "threads")


class Interrupted(Exception):
    """The run was stopped, and has saved its state."""


def train(
    source: str,
    out: Path,
    settings: TrainingSettings,
    watcher: Watcher,
    *,
    resume: bool = False,
    stopping: Callable[[], bool],
) -> dict[str, Any]:
    """Fine-tune `source` into the folder `out` and return the training record.

    It raises InvalidInput for data, settings or a folder that cannot be used, ModelError for a base that cannot be
    trained, and Interrupted after `stopping()` has returned True and the state is saved.
    """
    require_train_extra()
    _check_folder(out, resume)
    datasets = [load_dataset(stage.path) for stage in settings.stages]
    machine = choose_machine(settings)
    _prepare_torch(settings)
    watcher.say(f"loading {source}")
    base = load_base(source, settings, machine.device)
    base.network.to(machine.device)
    run = _Run(source, out, settings, datasets, machine=machine, base=base, watcher=watcher)
    return run.finish(run.train(resume, stopping), stopping)


def _check_folder(out: Path, resume: bool) -> None:
    if resume:
        if not (out / STATE_FILE).is_file():
            raise InvalidInput(f"nothing to resume: there is no {str(out / STATE_FILE)!r}")
        return
    if (out / STATE_FILE).exists():
        raise InvalidInput(f"{str(out)!r} holds an unfinished run: go on with --resume, or remove the folder")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidInput(f"{str(out)!r} is not an empty folder: name a new one")


def _prepare_torch(settings: TrainingSettings) -> None:
    import torch

    torch.set_num_threads(settings.threads)
    torch.set_flush_denormal(True)  # subnormal gradients are slow and do not matter


class _Run:
    """One run's data, state and record."""

    def __init__(
        self,
        source: str,
        out: Path,
        settings: TrainingSettings,
        datasets: list[Dataset],
        *,
        machine: Machine,
        base: Base,
        watcher: Watcher,
    ) -> None:
        self._source = source
        self._out = out
        self._settings = settings
        self._machine = machine
        self._base = base
        self._watcher = watcher
        self._datasets = datasets
        self._split = hold_out([dataset.examples for dataset in datasets], settings.hold_out, settings.seed)
        if settings.hold_out:
            watcher.say(
                f"held out {len(self._split.held_out)} examples, {settings.hold_out} were asked for; {self._split.lost}"
                " others that share sentences with them are left out"
            )

    def train(self, resume: bool, stopping: Callable[[], bool]) -> Position:
        """Train all stages that are not done, and save the state after each."""
        state = load_state(self._out, self._identity()) if resume else None
        position = restore(state, self._base.network) if state else Position()
        self._out.mkdir(parents=True, exist_ok=True)
        if self._split.held_out:
            write_examples(self._out / HELD_OUT_FILE, self._split.held_out)
        optimizer_state = state["optimizer"] if state else None
        for number in range(position.stage, len(self._settings.stages)):
            self._train_stage(number, position, optimizer_state, stopping)
            optimizer_state = None
            position.stage, position.step = number + 1, 0
            save_state(self._out, self._identity(), position, self._base.network, None)
        return position

    def _train_stage(
        self, number: int, position: Position, optimizer_state: Any | None, stopping: Callable[[], bool]
    ) -> None:
        windows, description = self._windows(number)
        if len(position.data) == number:
            position.data.append(description)
        loop = StageLoop(self._base, self._machine, self._settings, number, windows)
        if optimizer_state is not None:
            loop.optimizer.load_state_dict(optimizer_state)
        self._watcher.start(self._settings.stages[number].path.name, position.step, loop.steps)

        def save() -> None:
            save_state(self._out, self._identity(), position, self._base.network, loop.optimizer)

        if not loop.run(position, report=self._watcher.step, save=save, stopping=stopping):
            raise Interrupted(f"stopped at step {position.step} of {loop.steps} of stage {number + 1}")

    def finish(self, position: Position, stopping: Callable[[], bool]) -> dict[str, Any]:
        """Measure, write the checkpoint and the record, remove the saved state; return the record."""
        measured = self._measure(self._split.held_out, stopping) if self._split.held_out else None
        record = {
            "base": Path(self._source).resolve().name if Path(self._source).is_dir() else self._source,
            "new_head": self._base.new_head,
            "settings": self._settings_by_name(),
            "device": self._machine.device,
            "precision": self._machine.precision,
            "versions": versions(),
            "data": position.data,
            "held_out": {"examples": len(self._split.held_out), "also_untrained": self._split.lost, "scores": measured},
            "losses": position.losses,
            "training_seconds": round(position.seconds, 1),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self._write(record)
        return record

    def _windows(self, number: int) -> tuple[Windows, dict[str, Any]]:
        stage, settings = self._settings.stages[number], self._settings
        examples = join_contexts(
            self._split.training[number],
            share=stage.join,
            max_tokens=settings.max_tokens,
            seed=f"{settings.seed}:join:{number}",
        )
        self._watcher.say(f"tokenizing {len(examples)} examples of {stage.path.name}")
        encoder = Encoder(
            self._base.tokenizer,
            max_tokens=settings.max_tokens,
            doc_stride=settings.doc_stride,
            max_question_tokens=settings.max_question_tokens,
        )
        windows = encoder.windows(examples)
        description = {
            "file": stage.path.name,
            "sha256": self._datasets[number].sha256,
            "examples": len(examples),
            "dropped": self._datasets[number].dropped,
            "windows": len(windows),
            "windows_without_answer": windows.unanswered,
            "mean_tokens": round(float(windows.lengths.mean()), 1),
        }
        self._watcher.say(", ".join(f"{name} {value}" for name, value in description.items()))
        return windows, description

    def _measure(self, examples: Sequence[Labelled], stopping: Callable[[], bool]) -> dict[str, float]:
        self._watcher.start("measuring", 0, 1)

        def report(done: int, total: int) -> None:
            self._watcher.step(done, total, None, 0)
            if stopping():  # the state is already saved at the end of the last stage
                raise Interrupted(f"stopped at window {done} of {total} of the measuring")

        return measure(self._base, examples, self._machine.device, report)

    def _identity(self) -> dict[str, Any]:
        settings = self._settings.to_dict()
        for name in _RUN_TIME_SETTINGS:
            del settings[name]
        for stage, dataset in zip(settings["stages"], self._datasets, strict=True):
            stage["path"] = dataset.sha256
        return {"base": self._source, "precision": self._machine.precision, **settings}

    def _settings_by_name(self) -> dict[str, Any]:
        settings = self._settings.to_dict()
        for stage in settings["stages"]:
            stage["path"] = Path(stage["path"]).name
        return settings

    def _write(self, record: dict[str, Any]) -> None:
        partial = self._out / ".partial"
        shutil.rmtree(partial, ignore_errors=True)
        self._base.tokenizer.backend_tokenizer.no_truncation()
        try:
            with quiet_transformers():
                self._base.network.to("cpu").save_pretrained(partial)
                self._base.tokenizer.save_pretrained(partial)
        except Exception as error:  # a full disk raises an error of safetensors' or tokenizers' own type, or an OSError
            shutil.rmtree(partial, ignore_errors=True)
            raise ModelError(
                f"cannot write the checkpoint to {str(self._out)!r}: {type(error).__name__}: {error}; the trained "
                "weights are saved: make room, and give the same command with --resume"
            ) from error
        for written in sorted(partial.iterdir()):
            os.replace(written, self._out / written.name)
        partial.rmdir()
        text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        (self._out / RECORD_FILE).write_text(text, encoding="utf-8")
        (self._out / STATE_FILE).unlink(missing_ok=True)
