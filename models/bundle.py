"""The folder of the bundled reader."""

from pathlib import Path

from qa_cluster.errors import ModelError
from qa_cluster.reading.manifest import MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE

_FOLDER = Path(__file__).parent / "default"


def default_reader() -> Path:
    """Return the folder of the bundled reader, which has the files `reader.onnx`, `tokenizer.json`, `manifest.json` and
    `MODEL_CARD.md`. Raises ModelError if one of the first three files is missing.
    """
    absent = [name for name in (MODEL_FILE, TOKENIZER_FILE, MANIFEST_FILE) if not (_FOLDER / name).is_file()]
    if absent:
        raise ModelError(f"the bundled reader lacks {absent[0]}: install the package again")
    return _FOLDER
