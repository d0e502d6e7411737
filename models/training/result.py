"""The result of a run on disk: the checkpoint and the record, written when all files of the checkpoint are complete."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qa_cluster.errors import ModelError

from ..checkpoints.loading import quiet_transformers
from ..checkpoints.record import RECORD_FILE
from .state import STATE_FILE


def write_result(
    out: Path, record: dict[str, Any], save: Callable[[Path], None], *, again: str = "repeat the command with --resume"
) -> None:
    """Write the checkpoint and the record to the folder `out`, and then delete the saved state of the run. `save` is
    called with a new folder, and writes the files of the checkpoint to this folder.

    Raises ModelError if a file of the checkpoint cannot be written. In this case, the saved state is kept, and the
    error says with `again` how to resume from it.
    """
    partial = out / ".partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with quiet_transformers():
            save(partial)
    except Exception as error:  # a full disk raises an error of safetensors' or tokenizers' own type, or an OSError
        shutil.rmtree(partial, ignore_errors=True)
        raise ModelError(
            f"cannot write the checkpoint to {str(out)!r}: {type(error).__name__}: {error}; the trained "
            f"weights are saved: free disk space, and {again}"
        ) from error
    for written in sorted(partial.iterdir()):
        os.replace(written, out / written.name)
    partial.rmdir()
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    (out / RECORD_FILE).write_text(text, encoding="utf-8")
    (out / STATE_FILE).unlink(missing_ok=True)
