"""Small TorchScript modules, as the files that clients store."""

from __future__ import annotations

import io
import warnings

import torch

from qa_cluster.gears.scripts.torch import torch_operators  # noqa: F401 - torch knows the operators of scripts by it


class Add(torch.nn.Module):
    """a + b."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b


class AddAndOne(torch.nn.Module):
    """Two outputs; the second one always has one row."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a + b, torch.ones(1)


class TokenReader(torch.nn.Module):
    """The shape of a question-answering model: three INT64 inputs [1, n], two FLOAT outputs [1, n]."""

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = (ids * mask).float()
        return scores, -scores - types


class InPlace(torch.nn.Module):
    """Changes its input."""

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return a.add_(1)


class Text(torch.nn.Module):
    """Returns no tensor."""

    def forward(self, a: torch.Tensor) -> str:
        return "text"


class Saving(torch.nn.Module):
    """Writes a file."""

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        torch.save(a, "/nowhere")
        return a


class SavingAtLoad(torch.nn.Module):
    """Writes a file during loading."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return a

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool]:
        return self.path, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.path = state[0]
        self.training = state[1]
        torch.save(torch.ones(1), state[0])


class Commanding(torch.nn.Module):
    """Runs a command, although only a stored script may do so."""

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        torch.ops.redis.execute("SET", "key", "value")
        return a


class Unchecked(torch.nn.Module):
    """Writes outside its memory."""

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        index = torch.tensor([[10_000_000]])
        return torch.ops.aten._sparse_coo_tensor_unsafe(index, a, [4], is_coalesced=True).to_dense()


class Flagged(torch.nn.Module):
    """Has an input that is not a tensor."""

    def forward(self, a: torch.Tensor, scale: float) -> torch.Tensor:
        return a * scale


def file_of(module: torch.nn.Module) -> bytes:
    """The scripted module, saved."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates the format of stored models
        buffer = io.BytesIO()
        torch.jit.save(torch.jit.script(module), buffer)
    return buffer.getvalue()
