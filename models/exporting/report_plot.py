"""Draws the picture in the report: the F1 on every question set over the size of the file, and the latency over the
length of the input.
"""

from collections.abc import Sequence
from pathlib import Path

from ..evaluation.measuring import Measured

_MARKERS = "os^Dv<>PX*"


def plot(variants: Sequence[Measured], title: str, target: Path) -> None:
    """Write the picture of the measurements `variants` to `target`, as SVG. The function needs matplotlib, from the
    `export` extra, but no display.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    sets = list(variants[0].scored)
    figure = Figure(figsize=(5 * (len(sets) + 1), 4), layout="constrained")
    figure.suptitle(title, parse_math=False)  # a name can contain dollar signs
    panels = figure.subplots(1, len(sets) + 1, squeeze=False)[0]
    for panel, name in zip(panels, sets, strict=False):
        for variant, marker in zip(variants, _MARKERS * len(variants), strict=False):
            panel.plot(
                variant.size_bytes / 1e6,
                variant.scored[name].score.f1,
                marker,
                label=f"{variant.precision}, {variant.runtime}",
            )
        panel.set(xlabel="size, MB", ylabel="F1")
        panel.set_title(name, parse_math=False)
        panel.margins(0.2)
    for variant, marker in zip(variants, _MARKERS * len(variants), strict=False):
        lengths = sorted(variant.latency)
        times = [variant.latency[length].median_ms for length in lengths]
        panels[-1].plot(lengths, times, marker=marker, label=f"{variant.precision}, {variant.runtime}")
    panels[-1].set(title="latency", xlabel="tokens", ylabel="ms a pair", yscale="log")
    panels[-1].legend(fontsize="small")
    FigureCanvasSVG(figure).print_svg(str(target), metadata={"Date": None})
