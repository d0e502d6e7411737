"""Pads windows to the arrays of a batch, and runs a network on the batch."""

import numpy as np
from numpy.typing import NDArray

from .base import BaseNetwork, Machine
from .encoding import PREFIX, Windows

_LENGTH_STEP = 8


def pad(windows: Windows, rows: NDArray[np.int64], base: BaseNetwork) -> dict[str, NDArray[np.int64]]:
    """Return the inputs of the network for the windows with the numbers `rows`, by the name of the input, int64 [rows,
    padded length] each.
    """
    longest = int(windows.lengths[rows].max())
    length = min(-(-longest // _LENGTH_STEP) * _LENGTH_STEP, base.max_tokens)
    ids = np.full((len(rows), length), base.tokenizer.pad_token_id, np.int64)
    mask = np.zeros_like(ids)
    types = np.zeros_like(ids)
    for number, row in enumerate(rows):
        begin, end = windows.bounds[row], windows.bounds[row + 1]
        ids[number, : end - begin] = windows.ids[begin:end]
        types[number, : end - begin] = windows.types[begin:end]
        mask[number, : end - begin] = 1
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {name: arrays[name] for name in base.inputs}


def logits_of(base: BaseNetwork, windows: Windows, rows: NDArray[np.int64], machine: Machine) -> NDArray[np.float32]:
    """Return the network's logits of first and last tokens for the windows with the numbers `rows`, float32 [rows, 2,
    padded length].
    """
    import torch

    inputs = {name: torch.from_numpy(array).to(machine.device) for name, array in pad(windows, rows, base).items()}
    with (
        torch.inference_mode(),
        torch.autocast(machine.device, dtype=machine.autocast, enabled=machine.autocast is not None),
    ):
        output = base.network(**inputs)
    found: NDArray[np.float32] = torch.stack([output.start_logits, output.end_logits], 1).float().cpu().numpy()
    return found


def token_masks(windows: Windows, rows: NDArray[np.int64], length: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return two masks for the windows with the numbers `rows`, bool [rows, length]: the tokens of the contexts, and
    the tokens of the prefixes of the contexts. `length` is the padded length.
    """
    found = np.full((len(rows), length), -1, np.int32)
    for number, row in enumerate(rows):
        begin, end = windows.bounds[row], windows.bounds[row + 1]
        found[number, : end - begin] = windows.spans[begin:end, 0]
    return found >= 0, found == PREFIX
