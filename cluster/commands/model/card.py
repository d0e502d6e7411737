"""`qa-cluster model card`: shows the manifest of a reader or an encoder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from qa_cluster.reading.bundled import bundled_reader
from qa_cluster.reading.manifest import MANIFEST_FILE
from qa_cluster.vectors.encoder_manifest import EncoderManifest, load_manifest

from ...terminal import console, tables


def card(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Folder of a reader or an encoder.", exists=True, file_okay=False, show_default="bundled"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Show the manifest of a reader or an encoder: origin, licence, limits and scores.

    Example: qa-cluster model card
    """
    folder = folder or bundled_reader()
    manifest = load_manifest(folder / MANIFEST_FILE)
    if json:
        console.say_json({"revision": manifest.revision, **asdict(manifest)})
        return
    shown = ("model_id", "revision", "precision", "family", "max_tokens", "licence", "provenance", "created")
    tables.table([{"": name, "value": getattr(manifest, name)} for name in shown], title=str(folder))
    if isinstance(manifest, EncoderManifest):
        if (agreement := manifest.agreement) is not None:
            console.say(
                f"cosine similarity to float32 on {agreement.texts} texts: mean {agreement.mean},"
                f" minimum {agreement.least}"
            )
        return
    tables.table(
        [
            {
                "question set": metric.dataset,
                "questions": metric.questions,
                "exact match": f"{metric.after.exact_match:.3f}",
                "F1": f"{metric.after.f1:.3f}",
                "F1 before export": f"{metric.before.f1:.3f}",
            }
            for metric in manifest.metrics
        ],
        right=("questions", "exact match", "F1", "F1 before export"),
    )
