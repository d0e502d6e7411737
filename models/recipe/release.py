"""Writes a reader as a release file, which `qa-cluster model get` fetches."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

from qa_cluster.manifest_fields import sha256_hex
from qa_cluster.reading.bundled import PACKED_FILE
from qa_cluster.reading.manifest import MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE, Manifest


def write_release(reader: Path, folder: Path) -> tuple[Path, str]:
    """Write the release file `ID-REVISION.tar` of the reader in the folder `reader` to `folder`. The ONNX file in it is
    compressed. Return the path and the SHA-256 of the release file.

    The same reader gives the same bytes.
    """
    manifest = Manifest.load(reader / MANIFEST_FILE)
    made = folder / f"{manifest.model_id}-{manifest.revision}.tar"
    parts = {
        MANIFEST_FILE: (reader / MANIFEST_FILE).read_bytes(),
        TOKENIZER_FILE: (reader / TOKENIZER_FILE).read_bytes(),
        PACKED_FILE: gzip.compress((reader / MODEL_FILE).read_bytes(), mtime=0),
    }
    with tarfile.open(made, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in parts.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return made, sha256_hex(made.read_bytes())
