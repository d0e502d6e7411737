"""`qa-cluster model get`: fetches a published reader or encoder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from qa_cluster.errors import ConfigError
from qa_cluster.reading.plan import ACCURATE

from ...fetching.release import fetch_release, release_of
from ...readers.reader_files import read_reader
from ...terminal import console
from ..shared_options import load_settings


def get(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help=f"URL#sha256=HEX of a release file, or `{ACCURATE}`: the URL in the setting second_reader_url."
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Option("--to", help="New folder for the model.", show_default="the name of the file, or `accurate`"),
    ] = None,
) -> None:
    """Fetch a published reader or encoder, check its SHA-256, and unpack it into a new folder.

    `make reader-accurate` writes such a release file, and prints its checksum.

    Examples:

        qa-cluster model get accurate

        qa-cluster model get 'https://models.example/reader.tar#sha256=..' --to my-reader
    """
    url, name = source, ""
    if source == ACCURATE:
        url, name = load_settings(context).settings.second_reader_url, ACCURATE
        if not url:
            raise ConfigError(
                "no URL is set for the second reader: set second_reader_url (QA_SECOND_READER_URL) to URL#sha256=HEX,"
                " or make the reader with `make reader-accurate`"
            )
    address, _ = release_of(url)
    folder = to or Path(name or Path(address).stem)
    with console.progress("fetching", None) as advance:
        fetch_release(url, folder, advance)
    try:
        reader = read_reader(folder)
    except BaseException:
        shutil.rmtree(folder)
        raise
    console.say(f"{reader.tag} is in {folder}")
    if not reader.is_encoder:
        console.notice(f"to load it next to the default reader: qa-cluster model load {folder} --beside")
