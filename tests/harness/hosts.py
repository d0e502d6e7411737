"""Hosts for tests: network namespaces with an address each, behind one bridge, which can be cut off and joined again.

They share files and processes with this machine, but no network: each host has its own loopback. They need Linux,
iproute2 and the rights to create namespaces (usually root). Otherwise the test is skipped with the reason.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

_SECONDS = 60


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=_SECONDS)


class Host:
    """One host: its address, and the programs that run on it."""

    def __init__(self, mark: str, network: str, number: int) -> None:
        self.name = f"qa-{mark}-{number}"
        self.address = f"{network}.{number}"
        self._cable = f"qa{mark}{number}"
        self.processes: list[subprocess.Popen[bytes]] = []

    def make(self, bridge: str) -> None:
        _ip("netns", "add", self.name)
        _ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("link", "set", self._cable, "master", bridge, "up")
        _ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", self.name, "link", "set", device, "up")

    def cut_off(self) -> None:
        """Cut the link: no packets pass, and neither end is notified."""
        _ip("link", "set", self._cable, "down")

    def join_again(self) -> None:
        _ip("link", "set", self._cable, "up")

    def words(self, command: Sequence[str]) -> list[str]:
        """The command line to run a command on this host."""
        return ["ip", "netns", "exec", self.name, *command]

    def start(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start a program here. The program replaces `ip`, so the process is the program's."""
        with log.open("ab") as output:
            self.processes.append(
                subprocess.Popen(
                    self.words(command),
                    env={**os.environ, **environment},
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a program here and wait for its end."""
        return subprocess.run(
            self.words(command), env={**os.environ, **environment}, capture_output=True, text=True, check=False
        )

    def remove(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        with suppress(subprocess.CalledProcessError):
            _ip("netns", "del", self.name)


class Hosts:
    """Some hosts on one bridge, on which this machine has an address too; a context manager."""

    def __init__(self, count: int) -> None:
        if not sys.platform.startswith("linux") or shutil.which("ip") is None:
            pytest.skip("this test needs network namespaces: Linux and `ip` (iproute2)")
        mark = secrets.token_hex(2)
        network = f"10.{int(mark[:2], 16) % 100 + 100}.{int(mark[2:], 16)}"
        self._bridge, self._own = f"qa{mark}br", f"{network}.254"
        self.all = [Host(mark, network, number) for number in range(1, count + 1)]

    def __enter__(self) -> Self:
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("addr", "add", f"{self._own}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for host in self.all:
                host.make(self._bridge)
        except subprocess.CalledProcessError as error:
            self._remove()
            pytest.skip(f"cannot create network namespaces: {error.stderr.strip()}")
        except BaseException:
            self._remove()
            raise
        return self

    def _remove(self) -> None:
        for host in self.all:
            host.remove()
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._bridge)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._remove()
