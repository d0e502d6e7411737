#!/usr/bin/env python3
"""Fetch the documents of the yardstick: python3 fetch.py OUT [NAME ...]

sources.toml names Debian packages and PyPI distributions, and the files in them that are documents. This script
downloads and unpacks each package without installing it, and copies its documents to OUT/NAME/FILE. It decompresses
.gz files and removes this suffix. The script does not change the folder of a source that exists.
"""

import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MARK = ".complete"


class SourceError(Exception):
    """A source is not available, or lacks files that sources.toml names."""


def run(command, folder):
    """Run a command line tool in a folder; after a failure, raise an error with the last lines of the output."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    except FileNotFoundError as error:
        raise SourceError(f"the program {command[0]} is missing: install it") from error
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise SourceError(f"`{' '.join(command)}` failed: {' | '.join(words)}")


def only_file(folder, pattern):
    """The only file in a download folder that matches the pattern."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SourceError(f"the download left {len(found)} files {pattern}, not one")
    return found[0]


def unpack_debian(source, folder):
    """Download and unpack a Debian package; returns the tree and the version."""
    run(["apt-get", "-q", "download", source["debian"]], folder)
    package = only_file(folder, "*.deb")
    tree = folder / "tree"
    run(["dpkg-deb", "-x", str(package), str(tree)], folder)
    return tree, package.name.split("_")[1].replace("%3a", ":")


def unpack_pypi(source, folder):
    """Download and unpack a PyPI distribution; returns the tree and the version."""
    wanted = f"{source['pypi']}=={source['version']}"
    binary = "--only-binary" if source.get("wheel") else "--no-binary"
    run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", binary, ":all:", wanted], folder)
    archive = only_file(folder, "*.*")
    tree = folder / "tree"
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(tree)
        return tree, source["version"]
    with tarfile.open(archive) as opened:
        opened.extractall(tree, filter="data")
    return only_file(tree, "*"), source["version"]


def documents(source, tree):
    """The documents below `tree`, by their new names."""
    named = {}
    skipped = {path for pattern in source.get("skip", []) for path in tree.glob(pattern)}
    for pattern in source["files"]:
        found = [path for path in sorted(tree.glob(pattern)) if path.is_file() and path not in skipped]
        if not found:
            raise SourceError(f"no file matches {pattern}")
        for path in found:
            name = re.sub(r"\.gz$", "", path.name)
            if named.setdefault(name, path) != path:
                raise SourceError(f"two files would have the name {name}: {named[name]} and {path}")
    return named


def fetch(source, out):
    """Fetch one source into its folder; returns the number of documents and a remark."""
    target = out / source["name"]
    if (target / MARK).exists():
        return len(list(target.iterdir())) - 1, "already there"
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=out) as scratch:
        # apt may download as another user, who must be able to write to this folder.
        os.chmod(scratch, 0o755)
        unpack = unpack_debian if "debian" in source else unpack_pypi
        tree, version = unpack(source, Path(scratch))
        made = Path(scratch) / "documents"
        made.mkdir()
        named = documents(source, tree)
        for name, path in named.items():
            data = path.read_bytes()
            (made / name).write_bytes(gzip.decompress(data) if path.name.endswith(".gz") else data)
        (made / MARK).write_text(version + "\n", encoding="utf-8")
        if target.exists():
            shutil.rmtree(target)
        made.rename(target)
    if version != source["version"]:
        return len(named), f"version {version}; the questions were written for {source['version']}"
    return len(named), "fetched"


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    out, wanted = Path(sys.argv[1]).resolve(), set(sys.argv[2:])
    sources = tomllib.loads((HERE / "sources.toml").read_text(encoding="utf-8"))["source"]
    if unknown := wanted - {source["name"] for source in sources}:
        sys.exit(f"sources.toml names no {', '.join(sorted(unknown))}")
    out.mkdir(parents=True, exist_ok=True)
    totals, failed = {}, []
    for source in sources:
        if wanted and source["name"] not in wanted:
            continue
        try:
            count, remark = fetch(source, out)
        except (SourceError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
            failed.append(source["name"])
            print(f"{source['name']:24} is not available: {error}", file=sys.stderr, flush=True)
            continue
        packages, files = totals.get(source["part"], (0, 0))
        totals[source["part"]] = (packages + 1, files + count)
        print(f"{source['name']:24} {source['part']:6} {count:4} documents, {remark}", flush=True)
    for part, (packages, files) in sorted(totals.items()):
        print(f"{part}: {files} documents of {packages} packages")
    if failed:
        sys.exit(f"{len(failed)} sources are not available: {', '.join(failed)}")


if __name__ == "__main__":
    main()
