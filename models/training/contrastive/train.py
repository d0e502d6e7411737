"""One training run of an encoder, from files to a Hugging Face checkpoint.

The loss is InfoNCE (van den Oord et al. 2018). As in DPR (Karpukhin et al. 2020), the wrong passages of a question are
the passages of all other questions of the batch, and one mined passage of each question that has mined passages. A
passage that contains the answer of a question is not a wrong passage for this question, except if the answer has fewer
than 4 characters.

During the run, the output folder has `resume.pt`. At the end it has the checkpoint and `training.json` (the record).
"""

import math
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from qa_cluster.errors import InvalidInput, ModelError
from qa_cluster.reading.manifest import TOKENIZER_FILE

from ...checkpoints.encoder_checkpoint import load_encoder
from ...checkpoints.loading import quiet_transformers
from ...examples.data import load_dataset
from ..base import choose_machine, require_train_extra, versions
from ..loop import change_weights, learning_rate, make_optimizer, run_steps
from ..progress import Watcher
from ..result import write_result
from ..state import STATE_FILE, Position, load_state, restore, save_state
from ..stopping import Interrupted
from .embedder import Embedder
from .examples import RankingExample, ranking_examples

_TOKENIZER_FILES = (TOKENIZER_FILE, "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")
_IGNORED = -1e4


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastiveSettings:
    """The settings of a run. The run reads each question once. Questions that do not fill the last batch are left out.

    Attributes:
        batch_size: questions in a step.
        temperature: divides the cosines before the softmax.
        dropout: replaces the dropout of the checkpoint.
    """

    learning_rate: float = 3e-5
    batch_size: int = 48
    temperature: float = 0.05
    dropout: float = 0.05
    warmup: float = 0.08
    weight_decay: float = 0.01
    max_gradient_norm: float = 1.0
    seed: int = 0
    device: str = "auto"
    precision: str = "auto"
    threads: int = 2
    save_minutes: float = 5.0


def train_encoder(
    checkpoint: Path,
    out: Path,
    data: Sequence[Path],
    settings: ContrastiveSettings,
    watcher: Watcher,
    *,
    stopping: Callable[[], bool],
) -> dict[str, Any]:
    """Train the encoder in `checkpoint` on files of groups or examples. Write the trained encoder to the folder `out`,
    and return the training record.

    If `out` has the state of a stopped run with the same data and settings, the run resumes there.

    Raises:
        InvalidInput: there are too few questions, or `out` has the state of a different run.
        ModelError: the checkpoint cannot be trained or written.
        Interrupted: `stopping()` has returned True, and the state is saved.
    """
    require_train_extra()
    datasets = [load_dataset(path) for path in data]
    questions = [question for dataset in datasets for question in ranking_examples(dataset.examples)]
    if len(questions) < settings.batch_size:
        raise InvalidInput(
            f"the data has {len(questions)} questions with an answer, but a step needs {settings.batch_size}: "
            f"{', '.join(repr(str(path)) for path in data)}"
        )
    random.Random(settings.seed).shuffle(questions)
    identity = {
        "base": checkpoint.name,
        "settings": {**asdict(settings), "threads": 0, "save_minutes": 0},
        "data": [dataset.sha256 for dataset in datasets],
    }
    out.mkdir(parents=True, exist_ok=True)
    run = _Run(checkpoint, questions, settings)
    position = run.restore(out, identity)
    if not run.train(position, watcher, lambda: run.save(out, identity, position), stopping):
        raise Interrupted(f"stopped at step {position.step} of {run.steps} of the encoder")
    run.save(out, identity, position)
    record = {
        **identity,
        "questions": run.steps * settings.batch_size,
        "with_negatives": sum(bool(question.negatives) for question in questions),
        "versions": versions(),
        "losses": position.losses,
        "training_seconds": round(position.seconds, 1),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_result(out, record, run.write, again="repeat the command")
    return record


class _Run:
    """The network, its optimizer and the questions of a training run. `steps` is the number of steps of the run."""

    def __init__(self, checkpoint: Path, questions: Sequence[RankingExample], settings: ContrastiveSettings) -> None:
        import torch

        torch.set_num_threads(settings.threads)
        torch.manual_seed(settings.seed)
        machine = choose_machine(settings.device, settings.precision)
        with quiet_transformers():  # transformers warns about weights of a head that is not used
            network, tokenizer = load_encoder(checkpoint)
        self._checkpoint, self._settings, self._questions = checkpoint, settings, questions
        self._network = network.to(machine.device).train()
        for module in network.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = settings.dropout
        self._embedder = Embedder(self._network, tokenizer, machine)
        self._optimizer = make_optimizer(self._network, settings.weight_decay)
        self.steps = len(questions) // settings.batch_size

    def restore(self, out: Path, identity: dict[str, Any]) -> Position:
        """Restore the state of a stopped run in `out`, and return its position. If there is no state, return the
        position at the start. `identity` describes the data and the settings, which must be the same as
        in the state.
        """
        if not (out / STATE_FILE).is_file():
            return Position()
        state = load_state(out, identity)
        self._optimizer.load_state_dict(state["optimizer"])
        return restore(state, self._network)

    def save(self, out: Path, identity: dict[str, Any], position: Position) -> None:
        """Write the state of the run to `out`."""
        save_state(out, identity, position, self._network, self._optimizer)

    def train(
        self, position: Position, watcher: Watcher, save: Callable[[], None], stopping: Callable[[], bool]
    ) -> bool:
        """Do the steps after `position`, and return True. If `stopping()` returns True after a step, call `save` and
        return False.
        """
        size = self._settings.batch_size
        watcher.start("training the encoder", position.step, self.steps)
        return run_steps(
            position,
            self.steps,
            (self._questions[step * size : (step + 1) * size] for step in range(position.step, self.steps)),
            self._step,
            save_minutes=self._settings.save_minutes,
            report=watcher.step,
            save=save,
            stopping=stopping,
        )

    def write(self, folder: Path) -> None:
        """Write the checkpoint to `folder`. The files of the tokenizer are copied unchanged, so that the tokens
        that shards have stored for documents stay valid.
        """
        self._network.to("cpu").save_pretrained(folder)
        for name in _TOKENIZER_FILES:
            if (self._checkpoint / name).is_file():
                shutil.copyfile(self._checkpoint / name, folder / name)

    def _step(self, batch: Sequence[RankingExample], step: int) -> float:
        settings = self._settings

        def require_finite(what: str, value: float) -> None:
            if not math.isfinite(value):
                raise ModelError(
                    f"the {what} is {value} at step {step + 1}: use a lower learning rate than"
                    f" {settings.learning_rate:g}"
                )

        loss = self._loss(batch, random.Random(f"{settings.seed}:negatives:{step}"))
        value = float(loss.detach())
        require_finite("loss", value)
        loss.backward()
        change_weights(
            self._network,
            self._optimizer,
            rate=learning_rate(step, self.steps, settings.learning_rate, settings.warmup),
            max_norm=settings.max_gradient_norm,
            check=lambda norm: require_finite("length of the gradient", norm),
        )
        return value

    def _loss(self, batch: Sequence[RankingExample], order: random.Random) -> Any:
        import torch

        passages = [question.passage for question in batch]
        passages += [order.choice(question.negatives) for question in batch if question.negatives]
        vectors = self._embedder.passages(passages)
        questions = self._embedder.questions([question.text for question in batch])
        cosines = questions @ vectors.T / self._settings.temperature
        ignored = [
            [row != column and question.may_be_answered_by(passage) for column, passage in enumerate(passages)]
            for row, question in enumerate(batch)
        ]
        cosines = cosines.masked_fill(torch.tensor(ignored, device=cosines.device), _IGNORED)
        return torch.nn.functional.cross_entropy(cosines, torch.arange(len(batch), device=cosines.device))
