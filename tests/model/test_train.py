"""Training of small networks made here: it learns, it resumes to the same bits, it refuses what it cannot train."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qa_cluster.errors import InvalidInput, ModelError
from qa_cluster.models.__main__ import main
from qa_cluster.models.checkpoint import load_checkpoint
from qa_cluster.models.training.base import Machine, load_base
from qa_cluster.models.training.data import Labelled, load_dataset, write_examples
from qa_cluster.models.training.encoding import Encoder
from qa_cluster.models.training.loop import StageLoop
from qa_cluster.models.training.settings import Stage, TrainingSettings
from qa_cluster.models.training.state import STATE_FILE, Position
from qa_cluster.models.training.train import HELD_OUT_FILE, RECORD_FILE, Interrupted, train

transformers = pytest.importorskip("transformers", reason="the train extra is not installed")
torch = pytest.importorskip("torch", reason="the train extra is not installed")
tokenizers = pytest.importorskip("tokenizers")
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

FILLER = [
    "the",
    "a",
    "map",
    "key",
    "book",
    "box",
    "of",
    "in",
    "on",
    "by",
    "was",
    "were",
    "kept",
    "found",
    "read",
    "sold",
    "old",
    "new",
    "red",
    "blue",
    "green",
    "small",
    "large",
]
COLOURS = ("crimson", "violet", "amber")
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
FAMILIES = {
    "bert": (transformers.BertConfig, SMALL),
    "electra": (transformers.ElectraConfig, {**SMALL, "embedding_size": 16}),
    "albert": (transformers.AlbertConfig, {**SMALL, "embedding_size": 16}),
    "roberta": (transformers.RobertaConfig, {**SMALL, "max_position_embeddings": 98, "type_vocab_size": 1}),
    "mpnet": (transformers.MPNetConfig, {**SMALL, "max_position_embeddings": 98}),
    "deberta-v2": (transformers.DebertaV2Config, {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "distilbert": (transformers.DistilBertConfig, {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}),
}


def word_pieces() -> Any:
    """`[CLS] question [SEP] context [SEP]`, unknown words cut into letters."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.?,é東京"
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *FILLER, *COLOURS, "which", "colour"]
    vocabulary += [piece for letter in letters for piece in (letter, f"##{letter}")]
    ids = {piece: number for number, piece in enumerate(dict.fromkeys(vocabulary))}
    backend = tokenizers.BertWordPieceTokenizer(ids)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend._tokenizer,
        **{f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep")},
    )


def byte_pairs() -> Any:
    """`<s> question </s></s> context </s>` over bytes, a blank belonging to the word behind it."""
    backend = tokenizers.ByteLevelBPETokenizer(trim_offsets=True)
    backend.train_from_iterator(FILLER, vocab_size=320, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    backend.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    roles = {"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend._tokenizer, **{f"{role}_token": token for role, token in roles.items()}
    )


def save_base(folder: Path, family: str = "bert", *, head: bool = False) -> Path:
    """Write a small network with random weights, of the given family, without a span head unless asked for."""
    bytewise = family in ("roberta", "mpnet")
    tokenizer = byte_pairs() if bytewise else word_pieces()
    make, sizes = FAMILIES[family]
    torch.manual_seed(7)
    config = make(**{"max_position_embeddings": 96, **sizes, "vocab_size": 400, "pad_token_id": tokenizer.pad_token_id})
    cls = transformers.AutoModelForQuestionAnswering if head else transformers.AutoModel
    cls.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def toy(count: int, seed: int = 0) -> list[Labelled]:
    """`which colour ?` over random words; a fifth of them without a colour."""
    order = random.Random(seed)
    found = []
    for _ in range(count):
        words = order.choices(FILLER, k=order.randint(4, 18))
        if order.random() < 0.2:
            found.append(Labelled("which colour?", " ".join(words), "", -1, "none"))
            continue
        place, colour = order.randrange(len(words)), order.choice(COLOURS)
        words[place] = colour
        context = " ".join(words)
        found.append(Labelled("which colour?", context, colour, len(" ".join([*words[:place], ""])), "some"))
    return found


class Silent:
    """Watches a run and keeps what it is told."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.started = ""

    def say(self, text: str) -> None: ...

    def start(self, name: str, done: int, total: int) -> None:
        self.started = name

    def step(self, done: int, total: int, loss: float | None, examples: int) -> None:
        if loss is not None:
            self.losses.append(loss)

    def after(self, steps: int) -> Callable[[], bool]:
        """Ask for a stop once so many steps are done."""
        return lambda: len(self.losses) >= steps


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "toy.jsonl.gz"
    write_examples(path, toy(600))
    return path


def settings(data: Path, *stages: str, **changed: Any) -> TrainingSettings:
    sizes = {"max_tokens": 48, "doc_stride": 8, "max_question_tokens": 8, "batch_size": 16, "threads": 1, **changed}
    return TrainingSettings(stages=tuple(Stage.parse(f"{data}:{stage}") for stage in stages or ("1:5e-3",)), **sizes)


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(folder / "model.safetensors"))


def test_it_learns_and_leaves_a_checkpoint_that_can_be_exported(
    base: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["train", str(base), str(out), "--data", f"{data}:6:5e-3", "--hold-out", "60", "--seed", "3"]
    sizes = ["--max-tokens", "48", "--doc-stride", "8", "--max-question-tokens", "8", "--batch-size", "16"]
    assert main([*arguments, *sizes, "--threads", "1", "--precision", "float32"]) == 0
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    assert record == json.loads((out / RECORD_FILE).read_text(encoding="utf-8"))
    scores = record["held_out"]["scores"]
    assert scores["f1"] > 0.9
    assert scores["separation"] > 0.9
    assert record["losses"][-1]["loss"] < 0.5
    assert record["data"][0]["sha256"] == load_dataset(data).sha256
    assert record["new_head"] is True
    assert not any(str(place) in printed.out for place in (base, data.parent, out))
    assert len(load_dataset(out / HELD_OUT_FILE).examples) == record["held_out"]["examples"] == scores["questions"]
    assert sorted(path.name for path in out.iterdir()) == sorted(
        ["config.json", HELD_OUT_FILE, "model.safetensors", "tokenizer.json", "tokenizer_config.json", RECORD_FILE]
    )
    assert "step 204 of 204" in printed.err  # steps, where there is no terminal to draw a bar on
    assert load_checkpoint(str(out)).family == "bert"
    assert json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))["truncation"] is None


@pytest.mark.parametrize("stops", [(1,), (3, 45), (57,), (60,)], ids=str)
def test_a_resumed_run_ends_with_the_same_bits(base: Path, data: Path, tmp_path: Path, stops: tuple[int, ...]) -> None:
    """Stages of 57 (one and a half epochs) and 19 steps, with dropout; stopped in each epoch and where a stage ends."""
    chosen = settings(data, "1.5:5e-3", "0.5:3e-3:0.5")
    whole = Silent()
    straight = train(str(base), tmp_path / "straight", chosen, whole, stopping=lambda: False)
    out, seen = tmp_path / "stopped", Silent()
    for number, steps in enumerate(stops):
        with pytest.raises(Interrupted, match="stopped at step"):
            train(str(base), out, chosen, seen, resume=number > 0, stopping=seen.after(steps))
        assert len(seen.losses) == steps
        assert not (out / "model.safetensors").exists()
    resumed = train(str(base), out, chosen, seen, resume=True, stopping=lambda: False)
    assert len(whole.losses) == 76
    assert seen.losses == whole.losses
    expected, found = weights(tmp_path / "straight"), weights(out)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert resumed["losses"] == straight["losses"]
    assert resumed["data"] == straight["data"]


def test_the_seed_decides(base: Path, data: Path, tmp_path: Path) -> None:
    runs = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        runs.append(Silent())
        train(str(base), tmp_path / name, settings(data, "0.2:1e-3", seed=seed), runs[-1], stopping=lambda: False)
    assert runs[0].losses == runs[1].losses != runs[2].losses


def test_only_the_same_run_is_resumed(base: Path, data: Path, tmp_path: Path) -> None:
    out, seen = tmp_path / "out", Silent()
    with pytest.raises(InvalidInput, match="nothing to resume"):  # before anything is loaded
        train("no base", out, settings(data), seen, resume=True, stopping=lambda: False)
    with pytest.raises(Interrupted):
        train(str(base), out, settings(data), seen, stopping=seen.after(2))
    with pytest.raises(InvalidInput, match="unfinished run: go on with --resume"):
        train(str(base), out, settings(data), seen, stopping=lambda: False)
    with pytest.raises(InvalidInput, match="batch_size was 16, is now 8"):
        train(str(base), out, settings(data, batch_size=8), seen, resume=True, stopping=lambda: False)
    changed = tmp_path / data.name
    write_examples(changed, toy(600, seed=5))
    with pytest.raises(InvalidInput, match="stages was"):
        train(str(base), out, settings(changed), seen, resume=True, stopping=lambda: False)
    content = (out / STATE_FILE).read_bytes()
    (out / STATE_FILE).write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match="cannot read"):
        train(str(base), out, settings(data), seen, resume=True, stopping=lambda: False)
    with pytest.raises(InvalidInput, match="not an empty folder"):
        train(str(base), base, settings(data), seen, stopping=lambda: False)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_trains(family: str, tmp_path: Path) -> None:
    source = save_base(tmp_path / "base", family)
    path = tmp_path / "toy.jsonl"
    path.write_text("\n".join(example.to_json() for example in toy(64)), encoding="utf-8")
    chosen = settings(path, "10:2e-3", max_tokens=96, max_question_tokens=20)
    seen = Silent()
    record = train(str(source), tmp_path / "out", chosen, seen, stopping=lambda: False)
    assert record["new_head"] is True
    assert np.mean(seen.losses[-5:]) < 0.8 * seen.losses[0]
    again = load_base(str(tmp_path / "out"), chosen, "cpu")
    assert not again.new_head
    assert ("token_type_ids" in again.inputs) == (family in ("bert", "electra", "albert"))


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_answers_are_found_in_the_tokens(family: str, tmp_path: Path) -> None:
    loaded = load_base(str(save_base(tmp_path, family)), settings(Path("none.json")), "cpu")
    encoder = Encoder(loaded.tokenizer, max_tokens=40, doc_stride=10, max_question_tokens=8)
    context = (
        "the caf\u00e9 in \u6771\u4eac sold a crimson map, " + "the old key was found by the blue box, " * 4 + "amber."
    )
    for answer in ("caf\u00e9", "\u6771\u4eac", "crimson map", "a crimson map, the old key", "amber"):
        start = context.index(answer)
        windows = encoder.windows([Labelled("which " * 30, context, answer, start)])
        assert len(windows) > 2
        assert windows.lengths.max() <= 40
        held = np.flatnonzero(windows.ends)
        assert 1 <= len(held) < len(windows)
        for row in held:
            spans = windows.spans[windows.bounds[row] : windows.bounds[row + 1]]
            assert context[spans[windows.starts[row], 0] : spans[windows.ends[row], 1]] == answer
    cut = encoder.windows([Labelled("which?", context, context, 0), Labelled("which?", context, "", -1)])
    assert cut.unanswered == len(cut)  # no window holds all of it
    padded = " the old map was red. "
    blanks = encoder.windows([Labelled("which?", padded, " the", 0), Labelled("which?", padded, "red. ", 17)])
    held = [blanks.spans[blanks.bounds[row] :][[blanks.starts[row], blanks.ends[row]]] for row in (0, 1)]
    assert [padded[spans[0, 0] : spans[1, 1]] for spans in held] == ["the", "red."]


def test_what_cannot_be_trained_is_refused(base: Path, data: Path, tmp_path: Path) -> None:
    def refused(source: Path | str, match: str, error: type[Exception] = ModelError, **changed: Any) -> None:
        with pytest.raises(error, match=match):
            train(str(source), tmp_path / "out", settings(data, **changed), Silent(), stopping=lambda: False)
        assert not (tmp_path / "out").exists()

    def copy(name: str) -> Path:
        return Path(shutil.copytree(base, tmp_path / name))

    refused(data, "no model folder")
    cut = copy("cut")
    (cut / "model.safetensors").write_bytes((base / "model.safetensors").read_bytes()[:-1000])
    refused(cut, "cannot load weights")
    garbled = copy("garbled")
    (garbled / "config.json").write_text("{", encoding="utf-8")
    refused(garbled, "cannot load config")
    slow = copy("slow")
    (slow / "tokenizer_config.json").write_text('{"tokenizer_class": "CanineTokenizer"}', encoding="utf-8")
    refused(slow, "CanineTokenizer: only fast tokenizers")
    bare = copy("bare")
    (bare / "tokenizer.json").unlink()
    refused(bare, "has no tokenizer")
    plain = copy("plain")
    tokenizer = json.loads((base / "tokenizer.json").read_text(encoding="utf-8"))
    (plain / "tokenizer.json").write_text(json.dumps({**tokenizer, "post_processor": None}), encoding="utf-8")
    refused(plain, "does not begin a pair with a special token, but with 'a'")
    partial = copy("partial")
    from safetensors.torch import save_file

    save_file(dict(list(weights(base).items())[5:]), partial / "model.safetensors", {"format": "pt"})
    refused(partial, "lack 5 tensors of the encoder")
    refused(base, "reads 96 at most", InvalidInput, max_tokens=128)
    if not torch.cuda.is_available():
        refused(base, "no GPU", InvalidInput, device="cuda")


@pytest.mark.parametrize("what", ["loss", "length of the gradient"])
def test_numbers_that_are_none_end_the_run(base: Path, data: Path, what: str) -> None:
    chosen = settings(data)
    loaded = load_base(str(base), chosen, "cpu")
    first = next(loaded.network.parameters())
    if what == "loss":
        with torch.no_grad():
            first.fill_(float("nan"))
    else:
        first.register_hook(lambda gradient: gradient * float("nan"))
    encoder = Encoder(loaded.tokenizer, max_tokens=48, doc_stride=8, max_question_tokens=8)
    loop = StageLoop(loaded, Machine("cpu", None), chosen, 0, encoder.windows(toy(40)))
    before = {name: weight.clone() for name, weight in loaded.network.state_dict().items()}
    with pytest.raises(ModelError, match=f"the {what} is nan at step 1 of stage 1: use a lower learning rate"):
        loop.run(Position(), report=lambda *_: None, save=lambda: None, stopping=lambda: False)
    after = loaded.network.state_dict()
    assert all(torch.allclose(weight, after[name], equal_nan=True) for name, weight in before.items())


def test_too_little_memory_says_what_to_do(base: Path, data: Path) -> None:
    chosen = settings(data)
    loaded = load_base(str(base), chosen, "cpu")

    def forward(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    loaded.network.forward = forward
    windows = Encoder(loaded.tokenizer, max_tokens=48, doc_stride=8, max_question_tokens=8).windows(toy(40))
    loop = StageLoop(loaded, Machine("cpu", None), chosen, 0, windows)
    with pytest.raises(ModelError, match=r"no memory for \d+ windows of up to \d+ tokens on cpu: .* --batch-tokens"):
        loop.run(Position(), report=lambda *_: None, save=lambda: None, stopping=lambda: False)


def test_a_classifier_of_other_labels_is_a_base(base: Path, data: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(base, tmp_path / "classifier"))
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config |= {"id2label": {"0": "yes", "1": "no", "2": "maybe"}, "label2id": {"yes": 0, "no": 1, "maybe": 2}}
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    train(str(source), tmp_path / "out", settings(data, "0.1:1e-3"), Silent(), stopping=lambda: False)
    assert weights(tmp_path / "out")["qa_outputs.weight"].shape[0] == 2
    assert not load_base(str(tmp_path / "out"), settings(data), "cpu").new_head


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let writing fail beyond so many bytes of a file, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_costs_no_more_than_the_steps_since_the_last_save(base: Path, data: Path, tmp_path: Path) -> None:
    out, seen, chosen = tmp_path / "out", Silent(), settings(data, "0.3:1e-3")
    with largest_file(50_000), pytest.raises(ModelError, match=r"cannot save the run in .* MB are free: "):
        train(str(base), out, chosen, seen, stopping=seen.after(1))
    assert not list(out.iterdir())
    with pytest.raises(Interrupted):
        train(str(base), out, chosen, seen, stopping=lambda: True)
    saved = (out / STATE_FILE).read_bytes()
    with largest_file(50_000), pytest.raises(ModelError, match="what was saved before is kept"):
        train(str(base), out, chosen, seen, resume=True, stopping=lambda: True)
    assert (out / STATE_FILE).read_bytes() == saved
    assert [path.name for path in out.iterdir()] == [STATE_FILE]
    train(str(base), out, chosen, seen, resume=True, stopping=lambda: False)
    assert (out / RECORD_FILE).is_file()


def test_a_checkpoint_that_cannot_be_written_is_not_lost(
    base: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, seen, chosen = tmp_path / "out", Silent(), settings(data, "0.1:1e-3")

    def short_of_room() -> dict[str, str]:
        limits.enter_context(largest_file(50_000))
        return {}

    with ExitStack() as limits, monkeypatch.context() as patched:
        patched.setattr("qa_cluster.models.training.train.versions", short_of_room)  # the last before the files
        with pytest.raises(ModelError, match=r"cannot write the checkpoint .* with --resume"):
            train(str(base), out, chosen, seen, stopping=lambda: False)
    assert [path.name for path in out.iterdir()] == [STATE_FILE]
    steps = len(seen.losses)
    train(str(base), out, chosen, seen, resume=True, stopping=lambda: False)
    assert (out / "model.safetensors").is_file()
    assert len(seen.losses) == steps


def test_a_stop_while_it_measures_is_heeded(base: Path, data: Path, tmp_path: Path) -> None:
    out, seen, chosen = tmp_path / "out", Silent(), settings(data, "0.1:1e-3", hold_out=40)
    with pytest.raises(Interrupted, match="of the measuring"):
        train(str(base), out, chosen, seen, stopping=lambda: seen.started == "measuring")
    record = train(str(base), out, chosen, seen, resume=True, stopping=lambda: False)
    assert record["held_out"]["scores"]["questions"] >= 40
    assert not (out / STATE_FILE).exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_save_the_run(base: Path, data: Path, tmp_path: Path, number: int, code: int) -> None:
    """Ctrl-C goes to the whole group of processes, as a terminal does it; SIGTERM to the command alone."""
    out = tmp_path / "out"
    command = [str(Path(sys.executable).with_name("qa-cluster")), "model", "train", str(base), str(out)]
    options = ["--data", f"{data}:400:1e-4", "--max-tokens", "48", "--max-question-tokens", "8", "--doc-stride", "8"]
    with subprocess.Popen(
        [*command, *options, "--save-minutes", "0.001"], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        assert program.stderr is not None
        said = []
        for line in program.stderr:
            said.append(line)
            if "windows_without_answer" in line:
                break
        os.killpg(program.pid, number) if number == signal.SIGINT else os.kill(program.pid, number)
        said.append(program.stderr.read())
        assert program.wait(timeout=60) == code, "".join(said)
    assert "To go on: the same command with --resume" in said[-1]
    assert (out / STATE_FILE).is_file()
    assert not (out / RECORD_FILE).exists()
