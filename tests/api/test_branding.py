"""The name and the image on the page: the settings `page_title` and `page_logo`."""

from __future__ import annotations

from pathlib import Path

import pytest

from qa_cluster.api.__main__ import service_options
from qa_cluster.api.routes.branding import MAX_LOGO_BYTES, load_logo
from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError
from tests.api.service_under_test import assert_problem, serving
from tests.client.scripted_cluster import ScriptedCluster

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
IMAGES = {
    "image/png": PNG,
    "image/jpeg": b"\xff\xd8\xff\xe0",
    "image/gif": b"GIF89a",
    "image/webp": b"RIFF\0\0\0\0WEBPVP8 ",
    "image/svg+xml": b'<?xml version="1.0"?>\n<!-- a -->\n<svg xmlns="http://www.w3.org/2000/svg"><script>1</script></svg>',
}


@pytest.mark.parametrize("media_type", IMAGES)
def test_the_media_type_of_a_logo_follows_its_content(media_type: str, tmp_path: Path) -> None:
    file = tmp_path / "logo.txt"
    file.write_bytes(IMAGES[media_type])
    logo = load_logo(str(file))
    assert logo is not None and (logo.body, logo.media_type) == (IMAGES[media_type], media_type)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "is not an image"),
        (b"<html><svg></svg></html>", "is not an image"),
        (b"<script>1</script><svg>", "is not an image"),
        (PNG + b"\0" * MAX_LOGO_BYTES, "more than 262144 bytes"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_not_an_image_stops_the_start(body: bytes | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "logo.png"
    if body is not None:
        file.write_bytes(body)
    with pytest.raises(ConfigError, match="page_logo") as error:
        service_options(Settings(cluster_url="redis://a:7000", page_logo=str(file)))
    assert said in str(error.value)


@pytest.mark.parametrize("title", ["", "  ", "a" * 101])
def test_the_length_of_a_title_is_limited(title: str) -> None:
    with pytest.raises(ConfigError, match="page_title"):
        service_options(Settings(cluster_url="redis://a:7000", page_title=title))


async def test_the_page_has_the_title_and_the_logo(cluster: ScriptedCluster, tmp_path: Path) -> None:
    file = tmp_path / "logo.svg"
    file.write_bytes(IMAGES["image/svg+xml"])
    async with serving(cluster, page_title="Acme <b>&", page_logo=str(file)) as client:
        page = (await client.get("/")).text
        assert "<title>Acme &lt;b&gt;&amp;</title>" in page and '<img src="/logo" alt="">' in page
        assert "qa-cluster" not in page
        logo = await client.get("/logo")
        assert logo.content == IMAGES["image/svg+xml"] and logo.headers["content-type"] == "image/svg+xml"
        assert "sandbox" in logo.headers["content-security-policy"]
        again = await client.get("/logo", headers={"if-none-match": logo.headers["etag"]})
        assert again.status_code == 304
    async with serving(cluster) as client:
        assert_problem(await client.get("/logo"), 404, "route-not-found")
        assert "<img" not in (await client.get("/")).text
