"""Writes docs/compatibility.md from the passed tests, with a row for every command and option in their marks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEAD = Path(__file__).with_name("compatibility.md.in")
FAMILIES = {
    "AI.": "Tensors, models, scripts and graphs: `AI.*`",
    "RG.": "Functions: `RG.*`",
    "redisAI": "In functions: the module `redisAI`",
    "GearsBuilder": "In functions: `GearsBuilder`, readers, `run` and `register`",
    "redisgears": "In functions: the module `redisgears` and the globals",
    "redgrease": "What redgrease expects of a server",
    "INFO": "`INFO` and the module",
}


@dataclass
class Row:
    """The results for one command or option."""

    better: list[str] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def verdict(self) -> str:
        """The text for the last column of the table."""
        if self.left_out:
            return "left out: " + "; ".join(self.left_out)
        if self.differs:
            return "differs: " + "; ".join(self.differs)
        return "better: " + "; ".join(self.better) if self.better else "same"


class Proofs:
    """Collects the passed tests and their deployments."""

    def __init__(self) -> None:
        self.deployments: set[str] = set()
        self.versions: dict[str, str] = {}
        self._rows: dict[str, dict[str, Row]] = {}

    def ran_on(self, name: str, server: str, version: str) -> None:
        """Record a deployment on which tests have run."""
        self.deployments.add(name)
        self.versions[server] = version

    def passed(self, item: Any) -> None:
        """Record the marks of a passed test."""
        for command, option, better, differs, left_out in _marks(item):
            row = self._rows.setdefault(command, {}).setdefault(option, Row())
            for text, known in ((better, row.better), (differs, row.differs), (left_out, row.left_out)):
                if text and text not in known:
                    known.append(text)

    def unproved(self, session: Any) -> set[tuple[str, str]]:
        """The marked commands and options without a passed test."""
        wanted = {(command, option) for item in session.items for command, option, *_ in _marks(item)}
        return wanted - {(command, option) for command, rows in self._rows.items() for option in rows}

    def document(self) -> str:
        """The complete text of docs/compatibility.md."""
        versions = " and ".join(
            f"{'Valkey' if server == 'valkey' else 'Redis'} {version}"
            for server, version in sorted(self.versions.items(), reverse=True)
        )
        parts = [HEAD.read_text().replace("@VERSIONS@", versions).rstrip("\n")]
        for prefix, title in FAMILIES.items():
            rows = [
                f"| `{command}` | {option or '(the command)'} | {row.verdict()} |"
                for command in sorted(c for c in self._rows if c.startswith(prefix))
                for option, row in sorted(self._rows[command].items())
            ]
            if rows:
                parts.append(f"## {title}\n\n| what | part | verdict |\n|---|---|---|\n" + "\n".join(rows))
        return "\n\n".join(parts) + "\n"


def _marks(item: Any) -> list[tuple[str, str, str, str, str]]:
    found = []
    for mark in item.iter_markers("covers"):
        command, *options = mark.args
        better, differs = mark.kwargs.get("better", ""), mark.kwargs.get("differs", "")
        found += [(command, option, better, differs, "") for option in options or [""]]
    for mark in item.iter_markers("left_out"):
        command, *options = mark.args
        text = f"{mark.kwargs['why']}; instead: {mark.kwargs['instead']}"
        found += [(command, option, "", "", text) for option in options or [""]]
    return found
