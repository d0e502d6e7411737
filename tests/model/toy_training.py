"""A question set that a tiny network learns in seconds, and training runs with this set."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qa_cluster.models.examples.labelled import Labelled
from qa_cluster.models.training.settings import Stage, TrainingSettings
from qa_cluster.models.training.train import train
from tests.model.tiny_checkpoints import FAMILIES

FILLER = (
    *("the", "a", "map", "key", "book", "box", "of", "in", "on", "by", "was", "were", "kept", "found", "read", "sold"),
    *("old", "new", "red", "blue", "green", "small", "large"),
)
COLOURS = ("crimson", "violet", "amber")
# repeated, so that each word becomes a token of trained tokenizers; letters and digits cover all other words
TEXTS = [" ".join([*FILLER, *COLOURS, "which colour?"])] * 50 + [" ".join(string.ascii_lowercase + string.digits)]


def save_base(folder: Path, family: str = "bert") -> Path:
    """Write a small network of the given family with random weights and without a span head."""
    return FAMILIES[family].save(folder, "Model", TEXTS, initializer_range=0.02, max_position_embeddings=98)


def toy(count: int, seed: int = 0) -> list[Labelled]:
    """Questions `which colour?` about texts of random words. A fifth of the texts have no colour."""
    order = random.Random(seed)
    found = []
    for _ in range(count):
        words = order.choices(FILLER, k=order.randint(4, 18))
        if order.random() < 0.2:
            found.append(Labelled("which colour?", " ".join(words), "", -1, "none"))
            continue
        place, colour = order.randrange(len(words)), order.choice(COLOURS)
        words[place] = colour
        context = " ".join(words)
        found.append(Labelled("which colour?", context, colour, len(" ".join([*words[:place], ""])), "some"))
    return found


class Silent:
    """A watcher that records the losses of a run."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.started = ""

    def say(self, text: str) -> None: ...

    def start(self, name: str, done: int, total: int) -> None:
        self.started = name

    def step(self, done: int, total: int, loss: float | None, examples: int) -> None:
        if loss is not None:
            self.losses.append(loss)

    def after(self, steps: int) -> Callable[[], bool]:
        """Return a function that requests a stop after this number of steps."""
        return lambda: len(self.losses) >= steps


def run(
    base: Path | str, out: Path, chosen: TrainingSettings, seen: Silent | None = None, **options: Any
) -> dict[str, Any]:
    """Train to the end, if no option says otherwise; return the record."""
    return train(str(base), out, chosen, seen or Silent(), **{"stopping": lambda: False, **options})


def settings(data: Path, *stages: str, **changed: Any) -> TrainingSettings:
    sizes = {"max_tokens": 48, "doc_stride": 8, "max_question_tokens": 8, "batch_size": 16, "threads": 1, **changed}
    return TrainingSettings(stages=tuple(Stage.parse(f"{data}:{stage}") for stage in stages or ("1:5e-3",)), **sizes)


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(folder / "model.safetensors"))
