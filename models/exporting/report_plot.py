"""The picture of an export's report: F1 on every question set over the size, and latency by length."""

from collections.abc import Sequence
from pathlib import Path

from ..evaluation.measuring import Measured

_MARKERS = "os^Dv<>PX*"


def plot(ways: Sequence[Measured], title: str, target: Path) -> None:
    """Write the picture as SVG. It needs matplotlib, from the `export` extra, but no display."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    sets = list(ways[0].scored)
    figure = Figure(figsize=(5 * (len(sets) + 1), 4), layout="constrained")
    figure.suptitle(title, parse_math=False)  # a name with dollar signs is not mathematics
    panels = figure.subplots(1, len(sets) + 1, squeeze=False)[0]
    for panel, name in zip(panels, sets, strict=False):
        for way, marker in zip(ways, _MARKERS * len(ways), strict=False):
            panel.plot(way.size_bytes / 1e6, way.scored[name].score.f1, marker, label=f"{way.precision}, {way.runtime}")
        panel.set(xlabel="size, MB", ylabel="F1")
        panel.set_title(name, parse_math=False)
        panel.margins(0.2)
    for way, marker in zip(ways, _MARKERS * len(ways), strict=False):
        lengths = sorted(way.latency)
        times = [way.latency[length].median_ms for length in lengths]
        panels[-1].plot(lengths, times, marker=marker, label=f"{way.precision}, {way.runtime}")
    panels[-1].set(title="latency", xlabel="tokens", ylabel="ms a pair", yscale="log")
    panels[-1].legend(fontsize="small")
    FigureCanvasSVG(figure).print_svg(str(target), metadata={"Date": None})
