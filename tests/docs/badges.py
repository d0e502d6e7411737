"""The README's badges: small pictures with facts of this checkout, made and stored here.

`python -m tests.docs.badges` writes them to docs/badges; a test compares them with the output of this code.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from .blocks import ROOT

FOLDER = ROOT / "docs" / "badges"
_NAME_COLOUR, _FACT_COLOUR = "#555", "#0b6e69"
_CHARACTER, _MARGIN, _HEIGHT = 6.6, 12, 20
_MODULE_NEEDS = re.compile(r"Redis (\d+\.\d+) or Valkey (\d+) is needed")


def facts() -> dict[str, tuple[str, str]]:
    """The subject and the fact of each badge by its file name. Each fact is read from the file that defines it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    licence = " ".join((ROOT / "LICENSE").read_text().split())
    sources = sorted((ROOT / "native").rglob("*.c"))
    needed = next(found for path in sources if (found := _MODULE_NEEDS.search(path.read_text())))
    torch = any(name.startswith(("torch", "transformers")) for name in project["dependencies"])
    return {
        "licence.svg": ("licence", "Apache 2.0" if licence.startswith("Apache License Version 2.0") else "unknown"),
        "python.svg": ("Python", f"{project['requires-python'].removeprefix('>=')}+"),
        "servers.svg": ("servers", f"Redis {needed[1]}+, Valkey {needed[2]}+"),
        "torch.svg": ("serves", "with torch" if torch else "without torch"),
    }


def picture(name: str, fact: str) -> str:
    """A badge as SVG."""
    left, right = (round(len(text) * _CHARACTER + _MARGIN) for text in (name, fact))
    font = 'font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" fill="#fff" text-anchor="middle"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{_HEIGHT}" role="img">'
        f"<title>{name}: {fact}</title>"
        f'<rect width="{left + right}" height="{_HEIGHT}" rx="3" fill="{_FACT_COLOUR}"/>'
        f'<path d="M3 0h{left - 3}v{_HEIGHT}H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="{_NAME_COLOUR}"/>'
        f'<text x="{left / 2}" y="14" {font}>{name}</text><text x="{left + right / 2}" y="14" {font}>{fact}</text>'
        "</svg>\n"
    )


def main() -> None:
    """Write all badges."""
    FOLDER.mkdir(exist_ok=True)
    for file, (name, fact) in facts().items():
        Path(FOLDER / file).write_text(picture(name, fact))


if __name__ == "__main__":
    main()
