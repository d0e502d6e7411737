"""The unmodified client of OpenAI: files, batches, their results, lists, cancellation, errors and API keys."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.harness.programs import ROOT, chosen_servers, find_binary
from tests.harness.system import TOOL, UNHURRIED, System

pytestmark = pytest.mark.timeout(900)

TEXT = "Herman Melville wrote Moby Dick. The whale is white."
ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    """A cluster with a document, a service that requires a key, and workers for batches."""
    binary = next(found for name in chosen_servers() if (found := find_binary(name)) is not None)
    with System(binary, **UNHURRIED) as found:
        found.start_service()
        (found.folder / "moby.txt").write_text(TEXT)
        found.cli("ingest", str(found.folder / "moby.txt"))
        with (found.folder / "jobs.log").open("ab") as log:
            workers = subprocess.Popen(
                [TOOL, "jobs", "work", "--workers", "1"], env=found.environment, stdout=log, stderr=log
            )
        try:
            yield found
        finally:
            workers.terminate()
            workers.wait(60)


@pytest.fixture(scope="module")
def key(system: System) -> str:
    return system.cli("keys", "create", "openai", "--scope", "ask", "--scope", "search").stdout.split()[0]


@pytest.fixture
def client(system: System, key: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"http://127.0.0.1:{system.port}/v1", api_key=key, max_retries=0) as found:
        yield found


def lines(count: int) -> bytes:
    body = {"question": "Who wrote Moby Dick?"}
    found = [{"custom_id": f"q{n}", "method": "POST", "url": "/qa", "body": body} for n in range(count)]
    return b"".join(json.dumps(line).encode() + b"\n" for line in found)


def ended(client: OpenAI, batch: Any, seconds: float = 240.0) -> Any:
    until = time.monotonic() + seconds
    while batch.status not in ENDED:
        assert time.monotonic() < until, batch
        time.sleep(0.5)
        batch = client.batches.retrieve(batch.id)
    return batch


def test_a_batch_from_the_upload_to_the_results(client: OpenAI) -> None:
    wrong = b'{"custom_id": "wrong", "method": "POST", "url": "/qa", "body": {"question": ""}}\n'
    file = client.files.create(file=("questions.jsonl", lines(20) + wrong), purpose="batch")
    assert (file.object, file.purpose, file.filename, file.status) == ("file", "batch", "questions.jsonl", "processed")
    batch = client.batches.create(
        input_file_id=file.id,
        endpoint="/qa",
        completion_window="24h",
        metadata={"run": "nightly"},  # type: ignore[arg-type]
    )
    assert (batch.status, batch.input_file_id, batch.metadata) == ("validating", file.id, {"run": "nightly"})
    batch = ended(client, batch)
    print(batch.to_json())
    assert batch.status == "completed" and batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (21, 20, 1)
    assert batch.output_file_id is not None and batch.error_file_id is not None
    text = client.files.content(batch.output_file_id).text
    print(text.splitlines()[0])
    results = [json.loads(line) for line in text.splitlines()]
    assert [line["custom_id"] for line in results] == [f"q{n}" for n in range(20)]
    assert {line["response"]["body"]["answers"][0]["answer"] for line in results} == {"Herman Melville"}
    (failed,) = (json.loads(line) for line in client.files.content(batch.error_file_id).text.splitlines())
    assert failed["response"]["body"]["error"]["param"] == "question"
    assert client.files.retrieve(batch.output_file_id).purpose == "batch_output"


def test_streamed_content(client: OpenAI, tmp_path: Path) -> None:
    data = lines(20_000)
    file = client.files.create(file=("big.jsonl", data), purpose="batch")
    assert file.bytes == len(data)
    with client.files.with_streaming_response.content(file.id) as response:
        response.stream_to_file(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data
    assert client.files.delete(file.id).deleted


def test_a_batch_that_fails_its_validation(client: OpenAI) -> None:
    file = client.files.create(file=("bad.jsonl", lines(2) + b"{\n"), purpose="batch")
    batch = ended(client, client.batches.create(input_file_id=file.id, endpoint="/qa", completion_window="24h"))  # type: ignore[arg-type]
    assert batch.status == "failed" and batch.errors is not None and batch.errors.data is not None
    assert [(error.line, error.code) for error in batch.errors.data] == [(3, "invalid_json_line")]


def test_lists_iterate_over_all_pages(client: OpenAI) -> None:
    file = client.files.create(file=("one.jsonl", lines(1)), purpose="batch")
    made = [client.batches.create(input_file_id=file.id, endpoint="/qa", completion_window="24h") for _ in range(5)]  # type: ignore[arg-type]
    listed = [batch.id for batch in client.batches.list(limit=2)]
    assert listed[:5] == [batch.id for batch in reversed(made)]
    assert file.id in [each.id for each in client.files.list(limit=1, purpose="batch")]
    for batch in made:
        assert ended(client, batch).status == "completed"


def test_cancel(client: OpenAI) -> None:
    file = client.files.create(file=("long.jsonl", lines(5000)), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/qa", completion_window="24h")  # type: ignore[arg-type]
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = ended(client, batch)
    assert batch.status == "cancelled" and batch.request_counts is not None
    assert batch.request_counts.completed < 5000
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)


def test_errors(client: OpenAI, system: System) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.files.retrieve("file-000000000000000000000000")
    assert missing.value.code == "notfound" and missing.value.request_id
    with pytest.raises(openai.BadRequestError) as wrong:
        client.files.create(file=b"x", purpose="fine-tune")
    assert wrong.value.param == "purpose"
    stranger = OpenAI(base_url=client.base_url, api_key="qac_no", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.batches.list()
    text = system.cli("keys", "create", "other", "--scope", "ask").stdout.split()[0]
    with OpenAI(base_url=client.base_url, api_key=text, max_retries=0) as other:
        assert list(other.batches.list()) == [] and list(other.files.list()) == []


def test_the_program_of_the_page(system: System, key: str, tmp_path: Path) -> None:
    """The program of the page runs; only its key and port are replaced."""
    page = (ROOT / "docs/integrations/batches.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    questions = re.findall(r"printf '%s\\n' '(\{.*?\})' >", page)
    assert len(questions) == 2
    (tmp_path / "questions.jsonl").write_text("\n".join(questions))
    program = program.replace("qac_..", key).replace(":8080", f":{system.port}")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert answers[0]["response"]["body"]["answers"][0]["answer"] == "Herman Melville"
