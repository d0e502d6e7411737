"""Writes the TorchScript models of the conformance tests. It needs torch, so run it with the worker's Python."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from tests.torch.models import Add, AddAndOne


class Crash(torch.nn.Module):
    """A model that loads but fails when it runs."""

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        """Read far beyond the end of the tensor."""
        return a.reshape(-1)[torch.tensor([1 << 40])]


class Hungry(torch.nn.Module):
    """A model whose use of memory depends on its input."""

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        """Return a tensor of ones whose size is the first input value."""
        return torch.ones(int(a.reshape(-1)[0].item()))


class Reader(torch.nn.Module):
    """A reader with the inputs and outputs of a BERT reader, and a rule instead of weights.

    The answer starts at the first context token whose id is in the question and ends one after it.
    """

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The start scores and the end scores of every token, each of the shape [1, L]."""
        context = (types == 1) & (mask == 1)
        asked = torch.where((types == 0) & (ids > 102), ids, torch.full_like(ids, -1))
        matches = (ids.unsqueeze(2) == asked.unsqueeze(1)).any(2) & context
        place = torch.arange(ids.shape[1]).unsqueeze(0)
        start = matches.to(torch.float32) * 10.0 - place.to(torch.float32) * 0.01
        end = torch.cat([torch.full_like(start[:, :1], -10.0), start[:, :-1]], 1)
        return start, end


def main() -> int:
    """Write every model."""
    folder = Path(sys.argv[1])
    torch.jit.script(Add()).save(folder / "add.pt")
    torch.jit.script(AddAndOne()).save(folder / "two.pt")
    torch.jit.script(Crash()).save(folder / "crash.pt")
    torch.jit.script(Hungry()).save(folder / "hungry.pt")
    row = torch.ones(1, 8, dtype=torch.int64)
    torch.jit.trace(Reader(), (row, row, row)).save(folder / "reader.pt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
