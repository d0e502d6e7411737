"""Makes the vectors of a batch of texts, through which the gradients of the network can be computed."""

from collections.abc import Sequence
from typing import Any

from qa_cluster.reading.prefix import prefix_ids

from ...checkpoints.encoder_checkpoint import CONTEXT_TOKENS, MAX_QUESTION_TOKENS, special_tokens
from ...examples.labelled import Labelled
from ..base import Machine

# The number of texts that are embedded together. Texts of similar length are embedded together, because padding costs
# as much time as tokens.
_PART = 24


class Embedder:
    """Makes the vectors of texts as the exported encoder does: the mean of the last layer, scaled to length 1."""

    def __init__(self, network: Any, tokenizer: Any, machine: Machine) -> None:
        self._network = network
        self._machine = machine
        self._tokenizer = tokenizer
        self._head, self._tail = special_tokens(tokenizer)
        self._pad = tokenizer.pad_token_id

    def questions(self, questions: Sequence[str]) -> Any:
        """Return the vectors of questions, float32 [questions, dims], with their gradients."""
        return self._vectors([self._row(self._ids(question), MAX_QUESTION_TOKENS) for question in questions])

    def passages(self, passages: Sequence[Labelled]) -> Any:
        """Return the vectors of passages with title and section, float32 [passages, dims], with their gradients."""
        rows = [
            [*prefix_ids(passage.title, passage.section, self._ids), *self._ids(passage.context)]
            for passage in passages
        ]
        return self._vectors([self._row(ids, CONTEXT_TOKENS) for ids in rows])

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def _row(self, ids: Sequence[int], longest: int) -> list[int]:
        space = longest - len(self._head) - len(self._tail)
        return [*self._head, *ids[:space], *self._tail]

    def _vectors(self, rows: Sequence[list[int]]) -> Any:
        import torch

        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        parts = [
            self._part([rows[row] for row in order[first : first + _PART]]) for first in range(0, len(rows), _PART)
        ]
        places = torch.empty(len(rows), dtype=torch.int64)
        places[torch.tensor(order)] = torch.arange(len(rows))
        return torch.cat(parts)[places]

    def _part(self, rows: Sequence[list[int]]) -> Any:
        import torch

        longest = max(map(len, rows))
        device, autocast = self._machine.device, self._machine.autocast
        ids = torch.tensor([row + [self._pad] * (longest - len(row)) for row in rows], device=device)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=device)
        with torch.autocast(device, dtype=autocast, enabled=autocast is not None):
            hidden = self._network(input_ids=ids, attention_mask=mask).last_hidden_state
        counted = mask.unsqueeze(-1).float()
        mean = (hidden.float() * counted).sum(1) / counted.sum(1)
        return torch.nn.functional.normalize(mean, dim=1)
