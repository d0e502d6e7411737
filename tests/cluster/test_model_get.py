"""`qa-cluster model get`: downloads, checks, and refusals."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from qa_cluster.cluster.fetching import release
from qa_cluster.cluster.fetching.release import fetch_release
from qa_cluster.cluster.readers.reader_files import read_reader
from qa_cluster.errors import ConfigError, InvalidInput, RequestError
from qa_cluster.manifest_fields import sha256_hex
from qa_cluster.models.recipe.release import write_release
from tests.harness.commands import run_here
from tests.harness.tiny_readers import tiny_reader
from tests.harness.web_site import WebSite


@pytest.fixture
def web() -> Iterator[WebSite]:
    server = WebSite()
    yield server
    server.close()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a release file."""
    folder = tmp_path_factory.mktemp("published")
    tiny_reader(folder / "reader", "tiny", last=False)
    path, digest = write_release(folder / "reader", folder)
    assert write_release(folder / "reader", folder) == (path, digest), "the same reader gives the same bytes"
    data = path.read_bytes()
    assert sha256_hex(data) == digest
    return data


def archive(**files: bytes | None) -> bytes:
    """A tar archive. A file without data is a link."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name.replace("_", "."))
            if data is None:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            member.size = len(data or b"")
            tar.addfile(member, io.BytesIO(data or b""))
    return made.getvalue()


def served(web: WebSite, data: bytes, path: str = "/tiny-1.tar") -> str:
    web.page(path, data, "application/x-tar")
    return f"{web.url}{path}#sha256={sha256_hex(data)}"


def test_a_release_file_becomes_a_folder(web: WebSite, published: bytes, tmp_path: Path) -> None:
    done = run_here(("model", "get", served(web, published)), tmp_path)
    assert (done.returncode, done.stderr.count("model load tiny-1 --beside")) == (0, 1), done.stderr
    assert read_reader(tmp_path / "tiny-1").manifest.model_id == "tiny"
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-1"], "no other files remain"


def test_the_second_reader_has_a_setting(web: WebSite, published: bytes, tmp_path: Path) -> None:
    web.page("/latest", b"", status=302, location="/tiny-1.tar")
    url = served(web, published).replace("tiny-1.tar", "latest")
    done = run_here(("model", "get", "accurate"), tmp_path, {"QA_SECOND_READER_URL": url})
    assert done.returncode == 0, done.stderr
    assert read_reader(tmp_path / "accurate").manifest.model_id == "tiny"
    again = run_here(("model", "get", "accurate"), tmp_path, {"QA_SECOND_READER_URL": url})
    assert (again.returncode, "'accurate' exists: name a new folder with --to" in again.stderr) == (2, True)
    unset = run_here(("model", "get", "accurate", "--to", "other"), tmp_path)
    assert (unset.returncode, "set second_reader_url" in unset.stderr) == (2, True)


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("ftp://models.test/x.tar#sha256=" + "0" * 64, "must start with https:// or http://"),
        ("https://models.test/x.tar", "end the URL with #sha256=HEX"),
        ("https://models.test/x.tar#sha256=" + "0" * 63, "64 hexadecimal digits"),
        ("https://models.test/x.tar#sha256=" + "g" * 64, "64 hexadecimal digits"),
    ],
)
def test_a_url_needs_a_checksum(tmp_path: Path, url: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        fetch_release(url, tmp_path / "new", lambda done, total: None)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (archive(manifest_json=b"{}", evil_py=b"x"), "contains 'evil.py'"),
        (archive(**{"../manifest_json": b"{}"}), "contains '../manifest.json'"),
        (archive(manifest_json=None), r"contains 'manifest\.json'"),
        (b"no archive", "is not a tar archive"),
        (gzip.compress(archive(manifest_json=b"{}")), "is not a tar archive"),
    ],
)
def test_only_the_files_of_a_model_are_unpacked(web: WebSite, tmp_path: Path, data: bytes, fault: str) -> None:
    with pytest.raises(RequestError, match=fault):
        fetch_release(served(web, data), tmp_path / "new", lambda done, total: None)
    assert list(tmp_path.iterdir()) == []


def test_another_file_than_the_named_one_is_refused(web: WebSite, published: bytes, tmp_path: Path) -> None:
    url = served(web, published)
    web.page("/tiny-1.tar", published + b"\0", "application/x-tar")
    with pytest.raises(InvalidInput, match=f"expected {sha256_hex(published)}: it is damaged, or is a different file"):
        fetch_release(url, tmp_path / "new", lambda done, total: None)
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_release_leaves_no_folder(web: WebSite, tmp_path: Path) -> None:
    done = run_here(("model", "get", served(web, archive(manifest_json=b"{}"))), tmp_path)
    assert (done.returncode, list(tmp_path.iterdir())) == (1, []), done.stderr


@pytest.mark.parametrize(
    ("what", "fault"), [("status", "status 404"), ("large", "has more than 1000 bytes"), ("cut", "cannot be fetched")]
)
def test_a_server_that_does_not_send_the_file(  # noqa: PLR0917 - fixtures
    web: WebSite, published: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, fault: str
) -> None:
    url = served(web, published)
    if what == "status":
        web.page("/tiny-1.tar", b"gone", status=404)
    if what == "large":
        monkeypatch.setattr(release, "MAX_RELEASE_BYTES", 1000)
    if what == "cut":

        def cut(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.send_header("content-length", str(len(published)))
            handler.end_headers()
            handler.wfile.write(published[:-10])
            handler.close_connection = True

        web.replies["/tiny-1.tar"] = cut
    with pytest.raises(RequestError, match=fault):
        fetch_release(url, tmp_path / "new", lambda done, total: None)
    assert list(tmp_path.iterdir()) == []


def test_a_silent_server_ends_the_command(
    web: WebSite, published: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "_SILENT_SECONDS", 0.2)

    def silent(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-length", "100")
        handler.end_headers()
        handler.wfile.flush()
        handler.rfile.read(1)

    url = served(web, published)
    web.replies["/tiny-1.tar"] = silent
    with pytest.raises(InvalidInput, match="ReadTimeout"):
        fetch_release(url, tmp_path / "new", lambda done, total: None)
