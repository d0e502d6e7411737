"""Reads the settings of a recipe. An error names a setting that is unknown, missing or of the wrong type."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from qa_cluster.errors import InvalidInput

from ..exporting.export import TOLERANCE
from ..mining.mine import MiningSettings
from ..quantization.rounding import BITS
from ..training.settings import Stage, TrainingSettings

_Section = TypeVar("_Section")


@dataclass(frozen=True, slots=True)
class Wheel:
    """A file of a package index, with its hash and its size in bytes (0: the size is not checked)."""

    name: str
    sha256: str
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Archive:
    """A zip archive that is divided over several wheels: its name, and the SHA-256 of the whole archive."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Encoder:
    """The origin of an encoder. A recipe sets one of `package`, `checkpoint` and `tiny`.

    Attributes:
        package, version: a package of a package index.
        folder: the folder of the encoder in the wheels of the package. If `archive` is set, the wheels contain the
            parts of this archive, and the folder is in the archive.
        checkpoint: the folder of a checkpoint, relative to the folder of additional data. If the checkpoint has a span
            head, the training starts with this head.
        tiny: the family of a small random network.
    """

    package: str = ""
    version: str = ""
    folder: str = ""
    wheels: tuple[Wheel, ...] = ()
    archive: Archive | None = None
    checkpoint: str = ""
    tiny: str = ""


@dataclass(frozen=True, slots=True)
class Data:
    """A set of labelled files, with the name by which the stages of a training refer to it.

    `files` has patterns of paths. They are relative to the checkout for the project's own data (`own`), and otherwise
    to the folder of additional data.

    Attributes:
        passages: number of contexts of each file whose examples are used, spread over the file; 0: all contexts.
        mining: the settings for mining groups from these files; None if nothing is mined.
    """

    name: str
    files: tuple[str, ...]
    own: bool = False
    passages: int = 0
    mining: MiningSettings | None = None


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage of a training: its data, its number of epochs (may be a fraction), and its peak learning rate.

    `data` has the names of data, each as `name` (labelled examples), `name:groups` (mined groups) or `name:pairs`
    (mined pairs of question and passage without labels).
    """

    data: tuple[str, ...]
    epochs: float
    rate: float


@dataclass(frozen=True, slots=True)
class Training:
    """A training: its stages, and the other settings by name (`TrainingSettings`) if they differ from the defaults."""

    stages: tuple[PlannedStage, ...]
    settings: dict[str, Any]

    def at(self, files: list[Path], share: float = 1.0) -> TrainingSettings:
        """Return the settings for the files of the stages, one file for each stage. The number of epochs of each stage
        is multiplied by `share`.
        """
        stages = tuple(
            Stage(file, stage.epochs * share, stage.rate) for file, stage in zip(files, self.stages, strict=True)
        )
        return TrainingSettings(stages=stages, **self.settings)


@dataclass(frozen=True, slots=True)
class Export:
    """The settings of the export of the student.

    Attributes:
        thresholds: whether the thresholds are fitted to the held-out examples.
        calibration_examples: number of examples on which the ranges of int8 are measured; 0: no calibration.
        evaluation: patterns of question sets in the folder of additional data.
    """

    precision: str
    thresholds: bool
    calibration_examples: int
    evaluation: tuple[str, ...]
    weight_bits: int = BITS
    model_id: str | None = None
    tolerance: float = TOLERANCE


@dataclass(frozen=True, slots=True)
class Plan:
    """All settings of a recipe. Without a `teacher`, the student learns from the labels only.

    `share` is the share of the epochs that each training of the ablations has. `document` is the content of the file.
    """

    seed: int
    held_out: int
    student: Encoder
    teacher: Encoder | None
    data: tuple[Data, ...]
    student_training: Training
    teacher_training: Training | None
    export: Export
    share: float
    document: dict[str, Any] = field(repr=False)

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Return the settings in a TOML file. Raises InvalidInput, which names the invalid setting, or says that the
        file cannot be read.
        """
        document = _document(path)
        try:
            for role in {"student", "teacher"} & document.keys():
                document[role] = _with_encoder(document[role], role, path)
            return cls._of(document)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"recipe {str(path)!r}: {type(error).__name__}: {error}") from error

    @classmethod
    def _of(cls, document: dict[str, Any]) -> Plan:
        seed = document["seed"]
        data = tuple(_data(row, seed) for row in document["data"])
        shared = document["training"]
        teacher = document.get("teacher")
        made = cls(
            seed=seed,
            held_out=document["held_out"],
            student=_encoder(document["student"]),
            teacher=teacher and _encoder(teacher),
            data=data,
            student_training=_training(document["student"]["training"], shared, seed),
            teacher_training=teacher and _training(teacher["training"], shared, seed),
            export=_section(Export, {**document["export"], "evaluation": tuple(document["export"]["evaluation"])}),
            share=document["ablations"]["share"],
            document=document,
        )
        known = {name for each in data for name in (each.name, *_mined_names(each))}
        for training in filter(None, (made.student_training, made.teacher_training)):
            for name in (name for stage in training.stages for name in stage.data):
                if name not in known:
                    raise InvalidInput(
                        f"a stage names the data {name!r}; the known data are {', '.join(sorted(known))}"
                    )
        return made


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot read the recipe {str(path)!r}: {error}") from error


def _with_encoder(row: dict[str, Any], role: str, path: Path) -> dict[str, Any]:
    """Return the table of the student or the teacher (`role`) in a recipe.

    If the table has `like`, the name of another recipe in the same folder, the encoder comes from that recipe, and the
    training from this table.
    """
    if "like" not in row:
        return row
    if extra := sorted(row.keys() - {"like", "training"}):
        raise InvalidInput(
            f"recipe {str(path)!r}: the {role} has both 'like' ({row['like']!r}) and {extra[0]!r}: remove one"
        )
    other = _document(path.parent / row["like"])[role]
    return {name: value for name, value in other.items() if name != "training"} | {"training": row["training"]}


def _mined_names(data: Data) -> tuple[str, ...]:
    return () if data.mining is None else (f"{data.name}:groups", f"{data.name}:pairs")


def _section(kind: type[_Section], row: dict[str, Any]) -> _Section:
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(row.keys() - known):
        raise InvalidInput(
            f"a recipe's {kind.__name__.lower()} has no {unknown[0]!r}; known: {', '.join(sorted(known))}"
        )
    return kind(**row)


def _encoder(row: dict[str, Any]) -> Encoder:
    parts = {name: value for name, value in row.items() if name != "training"}
    if "wheels" in parts:
        parts["wheels"] = tuple(_section(Wheel, wheel) for wheel in parts["wheels"])
    if "archive" in parts:
        parts["archive"] = _section(Archive, parts["archive"])
    return _section(Encoder, parts)


def _data(row: dict[str, Any], seed: int) -> Data:
    mining = MiningSettings(seed=seed, **row["mining"]) if "mining" in row else None
    return _section(Data, {**row, "files": tuple(row["files"]), "mining": mining})


def _training(row: dict[str, Any], shared: dict[str, Any], seed: int) -> Training:
    own = {name: value for name, value in row.items() if name != "stages"}
    stages = tuple(_section(PlannedStage, {**each, "data": tuple(each["data"])}) for each in row["stages"])
    return Training(stages, {"seed": seed, **shared, **own})
