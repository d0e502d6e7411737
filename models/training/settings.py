"""The settings of a training run: stages, sizes, rates. They are checked before anything is loaded."""

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qa_cluster.errors import InvalidInput
from qa_cluster.reading.prefix import MAX_PREFIX_TOKENS

PRECISIONS = ("auto", "float32", "bfloat16")
DEVICES = ("auto", "cpu", "cuda")
NORMALISATIONS = ("auto", "window", "shared")
_NUMBER = r"[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?"
_STAGE = re.compile(rf"(.+?)(?::({_NUMBER})(?::({_NUMBER})(?::({_NUMBER}))?)?)?", re.DOTALL)
_FORM = "FILE[:epochs[:learning rate[:share joined]]]"


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the training: one training file, with the number of epochs (may be a fraction) and the peak learning
    rate.

    `join` is a share of the file's examples with a specific question (see `join_contexts`). The contexts of these
    examples are joined with other contexts of the file.
    """

    path: Path
    epochs: float = 2.0
    learning_rate: float = 1e-4
    join: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "Stage":
        """Read `FILE[:epochs[:learning rate[:share joined]]]`.

        >>> Stage.parse("squad.json:1.5:3e-5")
        Stage(path=PosixPath('squad.json'), epochs=1.5, learning_rate=3e-05, join=0.0)
        """
        found = _STAGE.fullmatch(text)
        if found is None:
            raise InvalidInput(f"data {text!r} must have the form {_FORM}, for example squad.json:2:1e-4")
        path, *numbers = found.groups()
        stage = cls(Path(path), *(float(number) for number in numbers if number is not None))
        if not 0 < stage.epochs <= 1000:
            raise InvalidInput(f"data {text!r}: epochs is {stage.epochs:g}, must be above 0 and at most 1000")
        if not 0 < stage.learning_rate <= 1:
            raise InvalidInput(
                f"data {text!r}: learning rate is {stage.learning_rate:g}, must be above 0 and at most 1"
            )
        if not 0 <= stage.join <= 1:
            raise InvalidInput(f"data {text!r}: share joined is {stage.join:g}, must be from 0 to 1")
        return stage


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """The settings on which the trained weights depend, and how often the state is saved.

    A step has `batch_size` windows, or fewer to keep their padded size within `batch_tokens`.

    Attributes:
        hold_out: about how many examples of the last file are held out: they are not trained on, but measured at the
            end.
        warmup: the share of a stage's steps in which the learning rate rises.
        attention_dropout: the dropout of the attention. None means the value in the config of the checkpoint to train.
        normalisation: how the loss is normalised. window: each window alone; shared: all windows of a group together;
            auto: shared for files with groups, otherwise window.
        null_weight: with shared normalisation, the weight of the loss that each window without an answer adds alone
            (`shared_loss`).
        title_share: the share of the questions whose contexts get title and section as a prefix.
        teacher_weight: the weight of the teacher in the loss, from 0 to 1; the labels have the other part.
        temperature: softens the distributions of teacher and student before they are compared.
    """

    stages: tuple[Stage, ...]
    seed: int = 0
    batch_size: int = 32
    batch_tokens: int = 16384
    max_tokens: int = 256
    doc_stride: int = 64
    max_question_tokens: int = 64
    hold_out: int = 0
    warmup: float = 0.06
    weight_decay: float = 0.01
    max_gradient_norm: float = 1.0
    attention_dropout: float | None = None
    normalisation: str = "auto"
    null_weight: float = 0.5
    title_share: float = 0.0
    teacher_weight: float = 0.5
    temperature: float = 2.0
    precision: str = "auto"
    device: str = "auto"
    threads: int = 2
    save_minutes: float = 10.0

    def __post_init__(self) -> None:
        """Raise InvalidInput for the first setting that is out of its limits, unknown, or too large for another
        setting.
        """
        if not self.stages:
            raise InvalidInput(f"there is no training data: name at least one file with --data {_FORM}")
        for name, low, high in _LIMITS:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InvalidInput(f"{name} is {value}, must be from {low} to {high}")
        if self.max_tokens < self.max_question_tokens + 16:
            raise InvalidInput(
                f"max_tokens is {self.max_tokens}, must be at least 16 more than the {self.max_question_tokens} tokens "
                "of the longest question"
            )
        prefix = MAX_PREFIX_TOKENS if self.title_share else 0
        most = self.max_tokens - self.max_question_tokens - prefix - 8
        if self.doc_stride > most:
            raise InvalidInput(
                f"doc_stride is {self.doc_stride}, must be at most {most} for windows of {self.max_tokens} tokens"
                + (f" with a prefix of up to {prefix} tokens" if prefix else "")
            )
        choices = (("precision", PRECISIONS), ("device", DEVICES), ("normalisation", NORMALISATIONS))
        for name, known in choices:
            if getattr(self, name) not in known:
                raise InvalidInput(f"unknown {name} {getattr(self, name)!r}; known: {', '.join(known)}")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings by name, as values that JSON can represent."""
        stages = [{**asdict(stage), "path": str(stage.path)} for stage in self.stages]
        return {**asdict(self), "stages": stages}


_LIMITS: tuple[tuple[str, float, float], ...] = (
    ("seed", 0, 2**32 - 1),
    ("batch_size", 1, 4096),
    ("batch_tokens", 16, 2**22),
    ("max_tokens", 32, 8192),
    ("doc_stride", 0, 8192),
    ("max_question_tokens", 4, 512),
    ("hold_out", 0, 10**6),
    ("warmup", 0.0, 1.0),
    ("weight_decay", 0.0, 1.0),
    ("max_gradient_norm", 1e-6, 1e6),
    ("attention_dropout", 0.0, 0.9),
    ("null_weight", 0.0, 100.0),
    ("title_share", 0.0, 1.0),
    ("teacher_weight", 0.0, 1.0),
    ("temperature", 0.1, 100.0),
    ("threads", 1, 256),
    ("save_minutes", 0.0, 1440.0),
)
