"""One training run, from files to a Hugging Face checkpoint: prepares the data, trains the stages, measures, writes.

During the run, the output folder has `resume.pt`. At the end it has the checkpoint (config, safetensors, tokenizer),
`training.json` (the record) and, if examples were held out, `heldout.jsonl.gz`.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from qa_cluster.errors import InvalidInput

from ..examples.data import Dataset, load_dataset, write_examples
from ..examples.holdout import hold_out
from ..examples.joining import join_contexts
from ..examples.labelled import Labelled
from .base import BaseNetwork, Machine, choose_machine, load_base, require_train_extra, versions
from .encoding import WindowEncoder
from .loop import StageLoop
from .measure import measure
from .objectives.objective import Objective
from .objectives.outputs import TeacherOutputs
from .objectives.targets import TeacherTargets, require_outputs
from .objectives.teacher import teach
from .progress import Watcher
from .result import write_result
from .settings import TrainingSettings
from .state import STATE_FILE, Position, load_state, restore, save_state
from .stopping import Interrupted

HELD_OUT_FILE = "heldout.jsonl.gz"
_RUN_TIME_SETTINGS = ("save_minutes", "threads")


@dataclass(frozen=True, slots=True)
class Distillation:
    """The teacher that a run learns from: the file of its outputs, and the folder of its checkpoint, with which the run
    computes the outputs that are missing in the file.

    If `teacher` is empty, the file must have the outputs for all examples.
    """

    outputs: Path
    teacher: str = ""


def train(
    source: str,
    out: Path,
    settings: TrainingSettings,
    watcher: Watcher,
    *,
    resume: bool = False,
    distillation: Distillation | None = None,
    stopping: Callable[[], bool],
) -> dict[str, Any]:
    """Fine-tune the checkpoint, encoder or reader `source` (see `load_base`). Write the trained checkpoint to the
    folder `out`, and return the training record. With `resume`, resume the stopped run in `out`.

    With `distillation`, the network also learns from the outputs of a teacher.

    Raises:
        InvalidInput: the data, the settings or a folder cannot be used.
        ModelError: `source` cannot be trained, or a file cannot be written.
        Interrupted: `stopping()` has returned True. If the teacher was still computing outputs, its finished
            outputs are saved. Otherwise, the state of the run is saved.
    """
    require_train_extra()
    _check_folder(out, resume)
    datasets = [load_dataset(stage.path) for stage in settings.stages]
    _check_data(datasets, settings, distillation)
    machine = choose_machine(settings.device, settings.precision)
    with _prepared_torch(settings):
        watcher.say(f"loading {source}")
        base = load_base(source, settings, machine.device)
        base.network.to(machine.device)
        run = _Run(
            source, out, settings, datasets, machine=machine, base=base, watcher=watcher, distillation=distillation
        )
        return run.finish(run.train(resume, stopping), stopping)


def _check_data(datasets: Sequence[Dataset], settings: TrainingSettings, distillation: Distillation | None) -> None:
    """Raise InvalidInput for data that does not fit the settings, and for missing data of the teacher."""
    for dataset, stage in zip(datasets, settings.stages, strict=True):
        name = repr(str(dataset.path))
        if dataset.unlabelled and distillation is None:
            raise InvalidInput(
                f"{name} has {dataset.unlabelled} examples without a label, which only a teacher can give: name one "
                "with --teacher"
            )
        if dataset.grouped and stage.join:
            raise InvalidInput(f"{name} has groups, whose contexts cannot be joined: set the share joined to 0")
        if settings.hold_out and (dataset.grouped or (dataset is datasets[-1] and dataset.unlabelled)):
            raise InvalidInput(
                f"hold_out is {settings.hold_out}, but {name} has groups or examples without a label: hold out "
                "examples before you mine, or set hold_out to 0"
            )
    if distillation is None:
        return
    if not distillation.teacher and not distillation.outputs.is_file():
        raise InvalidInput(
            f"the file of teacher's outputs {str(distillation.outputs)!r} is missing: name the teacher with --teacher"
        )
    if not distillation.outputs.absolute().parent.is_dir():
        raise InvalidInput(f"teacher's outputs {str(distillation.outputs)!r}: the folder does not exist")


def _check_folder(out: Path, resume: bool) -> None:
    if resume:
        if not (out / STATE_FILE).is_file():
            raise InvalidInput(f"there is no run to resume: {str(out / STATE_FILE)!r} is missing")
        return
    if (out / STATE_FILE).exists():
        raise InvalidInput(f"{str(out)!r} has an unfinished run: resume it with --resume, or remove the folder")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidInput(f"{str(out)!r} is not an empty folder: name a new folder")


@contextmanager
def _prepared_torch(settings: TrainingSettings) -> Generator[None]:
    import torch

    torch.set_num_threads(settings.threads)
    torch.set_flush_denormal(True)  # subnormal gradients are slow and do not matter
    try:
        yield
    finally:
        # The flag is valid for all code of this thread. With it, OpenVINO computes wrong shapes on processors without
        # AVX-512, and an export that follows in this process uses OpenVINO.
        torch.set_flush_denormal(False)


class _Run:
    """The data, the state and the record of one run."""

    def __init__(
        self,
        source: str,
        out: Path,
        settings: TrainingSettings,
        datasets: list[Dataset],
        *,
        machine: Machine,
        base: BaseNetwork,
        watcher: Watcher,
        distillation: Distillation | None,
    ) -> None:
        self._distillation = distillation
        self._taught: dict[str, Any] | None = None
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
                f"held out {len(self._split.held_out)} of {settings.hold_out} requested examples; {self._split.lost} "
                "others that share sentences with them are left out"
            )

    def train(self, resume: bool, stopping: Callable[[], bool]) -> Position:
        """Train all stages that are not finished, and save the state after each stage. Return the position at the end.
        Raises Interrupted if `stopping()` returns True.
        """
        outputs = self._outputs(stopping)
        state = load_state(self._out, self._identity()) if resume else None
        position = restore(state, self._base.network) if state else Position()
        self._out.mkdir(parents=True, exist_ok=True)
        if self._split.held_out:
            write_examples(self._out / HELD_OUT_FILE, self._split.held_out)
        optimizer_state = state["optimizer"] if state else None
        for number in range(position.stage, len(self._settings.stages)):
            self._train_stage(number, position, optimizer_state, outputs, stopping)
            optimizer_state = None
            position.stage, position.step = number + 1, 0
            save_state(self._out, self._identity(), position, self._base.network, None)
        return position

    def _train_stage(
        self,
        number: int,
        position: Position,
        optimizer_state: Any | None,
        outputs: TeacherOutputs | None,
        stopping: Callable[[], bool],
    ) -> None:
        objective, grouped = self._objective(number, outputs)
        loop = StageLoop(self._base, self._machine, self._settings, number, objective, grouped=grouped)
        if len(position.data) == number:
            position.data.append(self._described(number, objective, loop.left_out if grouped else None))
        if optimizer_state is not None:
            loop.optimizer.load_state_dict(optimizer_state)
        self._watcher.start(self._settings.stages[number].path.name, position.step, loop.steps)

        def save() -> None:
            save_state(self._out, self._identity(), position, self._base.network, loop.optimizer)

        if not loop.run(position, report=self._watcher.step, save=save, stopping=stopping):
            raise Interrupted(f"stopped at step {position.step} of {loop.steps} of stage {number + 1}")

    def finish(self, position: Position, stopping: Callable[[], bool]) -> dict[str, Any]:
        """Measure the network on the held-out examples, write the checkpoint and the record, and delete the saved
        state. Return the record.
        """
        measured = self._measure(self._split.held_out, stopping) if self._split.held_out else None
        record = {
            "base": Path(self._source).resolve().name if Path(self._source).is_dir() else self._source,
            "new_head": self._base.new_head,
            "settings": self._settings_by_name(),
            "device": self._machine.device,
            "precision": self._machine.precision,
            "versions": versions(),
            "data": position.data,
            "teacher": self._taught,
            "held_out": {"examples": len(self._split.held_out), "also_untrained": self._split.lost, "scores": measured},
            "losses": position.losses,
            "training_seconds": round(position.seconds, 1),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self._write(record)
        return record

    def _examples(self, number: int) -> list[Labelled]:
        """Return the training examples of the stage with the number `number`, some of them with joined contexts. Each
        call returns the same examples.
        """
        stage, settings = self._settings.stages[number], self._settings
        return join_contexts(
            self._split.training[number],
            share=stage.join,
            max_tokens=settings.max_tokens,
            seed=f"{settings.seed}:join:{number}",
        )

    def _outputs(self, stopping: Callable[[], bool]) -> TeacherOutputs | None:
        """Return the teacher's outputs for the examples of all stages; None without a teacher. If there is a checkpoint
        of the teacher, it computes the missing outputs. Otherwise, missing outputs raise InvalidInput.
        """
        distillation = self._distillation
        if distillation is None:
            return None
        examples = [example for number in range(len(self._settings.stages)) for example in self._examples(number)]
        if not distillation.teacher:
            outputs, self._taught = TeacherOutputs.load(distillation.outputs)
            require_outputs(outputs, examples)
            return outputs
        self._watcher.start("reading with the teacher", 0, len(examples))

        def report(done: int, total: int) -> None:
            self._watcher.step(done, total, None, 0)

        outputs = teach(
            distillation.teacher,
            distillation.outputs,
            examples,
            self._settings,
            self._machine,
            report=report,
            stopping=stopping,
        )
        self._taught = TeacherOutputs.load(distillation.outputs)[1]
        return outputs

    def _objective(self, number: int, outputs: TeacherOutputs | None) -> tuple[Objective, bool]:
        """Return the object that computes the loss of a stage, and whether each step of the stage has only whole
        groups. `outputs` are the outputs of the teacher, or None.
        """
        settings, dataset = self._settings, self._datasets[number]
        examples = self._examples(number)
        self._watcher.say(f"tokenizing {len(examples)} examples of {dataset.path.name}")
        share, seed = settings.title_share, str(settings.seed)
        encoder = WindowEncoder.of(self._base.tokenizer, settings, title_share=share, seed=seed)
        windows = encoder.windows(examples)
        targets = None
        if outputs is not None:
            targets = TeacherTargets(outputs, windows, examples, temperature=settings.temperature)
        shared = settings.normalisation == "shared" or (settings.normalisation == "auto" and dataset.grouped)
        return Objective(windows, settings, shared, targets), shared or dataset.grouped

    def _described(self, number: int, objective: Objective, left_out: int | None) -> dict[str, Any]:
        """Return the data of a stage, for the record.

        `left_out` is the number of windows that are not trained on (`StageLoop.left_out`); None if the stage is not
        trained in whole groups.
        """
        windows, dataset = objective.windows, self._datasets[number]
        description = {
            "file": dataset.path.name,
            "sha256": dataset.sha256,
            "examples": int(windows.owners[-1]) + 1,
            "dropped": dataset.dropped,
            "windows": len(windows),
            "windows_without_answer": windows.unanswered,
            "mean_tokens": round(float(windows.lengths.mean()), 1),
        }
        if left_out is not None:
            description |= {"groups": int(windows.groups[-1]) + 1, "windows_left_out": left_out}
        if dataset.unlabelled:
            description["unlabelled"] = dataset.unlabelled
        description["loss"] = ("shared" if objective.shared else "window") + (" + teacher" if objective.targets else "")
        self._watcher.say(", ".join(f"{name} {value}" for name, value in description.items()))
        return description

    def _measure(self, examples: Sequence[Labelled], stopping: Callable[[], bool]) -> dict[str, float]:
        self._watcher.start("measuring", 0, 1)

        def report(done: int, total: int) -> None:
            self._watcher.step(done, total, None, 0)
            if stopping():  # the state was saved at the end of the last stage
                raise Interrupted(f"stopped at window {done} of {total} of the measurement")

        titles = self._settings.title_share > 0
        return measure(self._base, examples, self._machine.device, report, titles=titles)

    def _identity(self) -> dict[str, Any]:
        settings = self._settings.to_dict()
        for name in _RUN_TIME_SETTINGS:
            del settings[name]
        for stage, dataset in zip(settings["stages"], self._datasets, strict=True):
            stage["path"] = dataset.sha256
        return {"base": self._source, "precision": self._machine.precision, "teacher": self._taught, **settings}

    def _settings_by_name(self) -> dict[str, Any]:
        settings = self._settings.to_dict()
        for stage in settings["stages"]:
            stage["path"] = Path(stage["path"]).name
        return settings

    def _write(self, record: dict[str, Any]) -> None:
        network, tokenizer = self._base.network.to("cpu"), self._base.tokenizer
        tokenizer.backend_tokenizer.no_truncation()

        def save(folder: Path) -> None:
            network.save_pretrained(folder)
            tokenizer.save_pretrained(folder)

        write_result(self._out, record, save)
