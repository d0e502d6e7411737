"""Makes the corpus of the scenario `corpus`: the documentation of Debian packages as clean text.

    python3 -m tests.benchmarks.debian_docs FOLDER [--megabytes N]

It downloads the packages of PACKAGES, unpacks them without installing them, and writes what `qa-cluster ingest` would
store of each document to FOLDER/PACKAGE/PATH.txt, two documents at a time, until there are N MB of text (default: all).
About 132 characters are a sentence. Files that are not documents, or that have the same text as another file, are left
out.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

from qa_cluster.errors import RequestError
from qa_cluster.sources.process.extractor import Extractor

PACKAGES = (
    *("linux-doc-6.1", "postgresql-doc-15", "python3.11-doc", "git-doc", "manpages-dev", "apache2-doc"),
    *("debian-reference-en", "octave-doc", "perl-doc", "python-sqlalchemy-doc", "rust-doc"),
)
ENDINGS = (".html", ".htm", ".txt", ".rst", ".md")
MIN_CHARS, MAX_BYTES = 500, 4_000_000


def unpacked(package: str, folder: Path) -> Path:
    """The tree of a package; CalledProcessError if it cannot be downloaded or unpacked."""
    folder.mkdir()
    folder.chmod(0o755)
    subprocess.run(["apt-get", "-q", "download", package], cwd=folder, check=True, capture_output=True)
    (archive,) = folder.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", str(archive), str(folder / "tree")], check=True)
    return folder / "tree"


def documents(tree: Path) -> list[Path]:
    """The files of a package that may be documents, in order."""
    found = [path for path in sorted(tree.rglob("*")) if path.is_file() and not path.is_symlink()]
    return [path for path in found if _is_document(path) and path.stat().st_size <= MAX_BYTES]


def _is_document(path: Path) -> bool:
    name = path.name.removesuffix(".gz")
    return name.endswith(ENDINGS) or "/man/man" in str(path)


@cache
def extractor() -> Extractor:
    """This process's extractor."""
    return Extractor()


def text_of(path: Path) -> str:
    """The clean text of a file, empty if it has none."""
    try:
        return str(extractor().extract(path.read_bytes(), path.name)[1].text)
    except RequestError:
        return ""


def texts(trees: dict[str, Path], pool: ProcessPoolExecutor) -> Iterator[tuple[str, str]]:
    """Names and texts of all documents, one package after the other."""
    for package, tree in trees.items():
        paths = documents(tree)
        for path, text in zip(paths, pool.map(text_of, paths, chunksize=16), strict=True):
            yield f"{package}/{path.relative_to(tree)}", text


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=int, default=10**6)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, ProcessPoolExecutor(2) as pool:
        Path(scratch).chmod(0o755)
        trees = {package: unpacked(package, Path(scratch) / package) for package in PACKAGES}
        seen: set[bytes] = set()
        written = 0
        for name, text in texts(trees, pool):
            digest = hashlib.sha256(text.encode()).digest()
            if len(text) < MIN_CHARS or digest in seen:
                continue
            seen.add(digest)
            target = options.folder / f"{name}.txt"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            written += len(text)
            if written > options.megabytes * 1_000_000:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    sys.stderr.write(f"{len(seen)} documents, {written / 1e6:.1f} MB of text in {options.folder}\n")


if __name__ == "__main__":
    main()
