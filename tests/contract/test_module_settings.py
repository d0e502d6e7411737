"""The module sends every setting that the worker reads. Only the module has the defaults."""

from __future__ import annotations

import re

import pytest

from qa_cluster.errors import ConfigError
from qa_cluster.gears.shard.shard import ShardInfo
from tests.harness.programs import ROOT

CONFIG = (ROOT / "native/server/config.c").read_text()
GEARS = {path: path.read_text() for path in (ROOT / "gears").rglob("*.py")}
NUMBERS = set(re.findall(r'^    \{"([a-z-]+)", &config\.\w+, ', CONFIG, re.MULTILINE))
TEXTS = set(re.findall(r'ReplyWithCString\(ctx, "qa\.([a-z-]+)"\)', CONFIG))
READ = r'\b(?:number|text|setting)\(\s*"qa\.([a-z-]+)"'


def test_the_module_sends_every_setting_that_the_worker_reads() -> None:
    read = {name for text in GEARS.values() for name in re.findall(READ, text)}
    assert len(read) > 15
    assert read <= NUMBERS | TEXTS
    assert len(NUMBERS) > 25


def test_a_missing_setting_is_an_error_that_names_it() -> None:
    reply = [b"worker", 1, b"shard_id", b"0" * 40, b"cluster", 0, b"qa.worker-threads", 2, b"qa.answer-keys", b""]
    info = ShardInfo.parse(reply)
    assert (info.number("qa.worker-threads"), info.text("qa.answer-keys")) == (2, "")
    for read in (info.number, info.text):
        with pytest.raises(ConfigError, match=r"does not send the setting qa\.fly"):
            read("qa.fly")
    with pytest.raises(ConfigError, match=r"setting qa\.answer-keys is not a whole number: ''"):
        info.number("qa.answer-keys")
