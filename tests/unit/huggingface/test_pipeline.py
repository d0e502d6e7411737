"""`qa_cluster.pipeline` takes what the pipeline of transformers took and gives what it gave, without it and torch.

Numbers are issues of transformers, or of tokenizers where that is said: faults of earlier readers, each a test here.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qa_cluster import pipeline
from qa_cluster.errors import InvalidInput, ModelError
from qa_cluster.huggingface.pipeline import QuestionAnsweringPipeline
from qa_cluster.reading.local_reader import LocalReader, bundled_reader
from qa_cluster.reading.tokenization import ReaderTokenizer

ADA = "Ada Lovelace wrote the first program in 1843."
WHO, WHEN = "Who wrote the first program?", "When was the first program written?"
FILLER = "Nothing of interest happened in the valley that year. "


@pytest.fixture(scope="module")
def qa() -> QuestionAnsweringPipeline:
    return pipeline("question-answering", threads=1)


@pytest.fixture(scope="module")
def ada(qa: QuestionAnsweringPipeline) -> dict[str, Any]:
    return dict(qa(question=WHO, context=ADA))


def test_an_answer_has_the_shape_there_was(ada: dict[str, Any]) -> None:
    assert list(ada) == ["score", "start", "end", "answer"]
    assert [type(value) for value in ada.values()] == [float, int, int, str]
    assert (ada["start"], ada["end"], ada["answer"]) == (0, 12, "Ada Lovelace")
    assert 0.5 < ada["score"] <= 1


class Squad:
    """Has what a SquadExample of transformers has."""

    def __init__(self, question: str, context: str) -> None:
        self.question_text, self.context_text, self.qas_id = question, context, None


PAIR = {"question": WHO, "context": ADA}
ONE: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), PAIR),
    ((), {"question": [WHO], "context": ADA}),
    ((), {"question": [WHO], "context": [ADA]}),
    ((WHO, ADA), {}),
    ((PAIR,), {}),
    (([PAIR],), {}),
    (((PAIR,),), {}),
    ((iter([PAIR]),), {}),
    ((), {"data": PAIR}),
    ((), {"data": [PAIR]}),
    ((), {"X": PAIR}),
    (([Squad(WHO, ADA)],), {}),
    (([QuestionAnsweringPipeline.create_sample(WHO, ADA)],), {}),
    (([{**PAIR, "id": 5, "answers": {}}],), {}),
]
TWO: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {"question": [WHO, WHEN], "context": ADA}),
    ((), {"question": [WHO, WHEN], "context": [ADA, ADA]}),
    (([PAIR, {"question": WHEN, "context": ADA}],), {}),
    ((PAIR, {"question": WHEN, "context": ADA}), {}),
    (({"question": [WHO, WHEN], "context": [ADA, ADA]},), {}),
    ((QuestionAnsweringPipeline.create_sample([WHO, WHEN], [ADA, ADA]),), {}),
    ((QuestionAnsweringPipeline.create_sample([WHO, WHEN], ADA),), {}),
]


@pytest.mark.parametrize(("args", "named"), ONE)
def test_one_pair_in_any_form_gives_one_answer(
    qa: QuestionAnsweringPipeline, ada: dict[str, Any], args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    # an iterator can be read once only
    given = [iter([PAIR]) if hasattr(value, "__next__") else value for value in args]
    assert qa(*given, **named) == ada


@pytest.mark.parametrize(("args", "named"), TWO)
def test_two_pairs_in_any_form_give_a_list(
    qa: QuestionAnsweringPipeline, ada: dict[str, Any], args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    first, second = qa(*args, **named)
    assert first == ada
    assert second["answer"] == "1843"


def test_nothing_gives_nothing(qa: QuestionAnsweringPipeline) -> None:
    assert qa(question=[], context=ADA) == qa([]) == []


WRONG: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ((), {}, ValueError, "question and context missing"),
    ((), {"question": WHO}, ValueError, "context missing"),
    ((), {"question": None, "context": ADA}, ValueError, "question is NoneType"),
    ((), {"question": WHO, "context": [ADA]}, ValueError, "give two strings"),
    ((), {"question": (WHO,), "context": [ADA]}, ValueError, "give two strings"),
    ((), {"question": [WHO, WHEN], "context": [ADA]}, ValueError, "2 questions and 1 contexts"),
    ((), {"question": "", "context": ADA}, ValueError, "`question` cannot be empty"),
    ((), {"question": WHO, "context": ""}, ValueError, "`context` cannot be empty"),  # 2623
    (({"question": WHO},), {}, KeyError, "lacks the key 'context'"),
    (({"question": WHO, "context": None},), {}, ValueError, "`context` cannot be None"),
    (({"question": WHO, "context": 3},), {}, ValueError, "must be a string, got int 3"),
    ((5,), {}, ValueError, "int 5"),
    (([5],), {}, ValueError, "int 5"),
    (("Who?",), {}, ValueError, "cannot find questions"),
    (([{"question": [WHO], "context": [ADA]}, PAIR],), {}, ValueError, "item 0 holds lists"),
    ((), {**PAIR, "top_k": 0}, ValueError, "top_k must be from 1"),
    ((), {**PAIR, "top_k": 2.5}, ValueError, "top_k must be an integer, got 2.5"),
    ((), {**PAIR, "max_answer_len": 0}, ValueError, "max_answer_len must be from 1"),
    ((), {**PAIR, "doc_stride": 500}, ValueError, "doc_stride is 500, larger than max_seq_len"),
    ((), {**PAIR, "doc_stride": -1}, ValueError, "doc_stride must be from 0"),
    ((), {**PAIR, "padding": "left"}, ValueError, "padding must be one of"),
    ((), {**PAIR, "handle_impossible_answer": "no"}, ValueError, "must be true or false"),
    ((), {**PAIR, "max_answer_length": 3}, ValueError, "unknown parameter 'max_answer_length'"),
    ((), {**PAIR, "batch_size": 0}, ValueError, "batch_size"),
    ((), {**PAIR, "max_seq_len": 5}, ValueError, "leaves no room"),
    ((), {"question": "who " * 600, "context": ADA}, ValueError, "question has more than 512 tokens"),
    ((), {"question": WHO, "context": "a \ud800 b"}, ValueError, "not valid Unicode"),
]


@pytest.mark.parametrize(("args", "named", "kind", "said"), WRONG)
def test_what_is_wrong_raises_the_kind_of_error_it_raised(
    qa: QuestionAnsweringPipeline, args: tuple[Any, ...], named: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind) as error:
        qa(*args, **named)
    assert said in str(error.value)
    assert isinstance(error.value, InvalidInput)


def test_a_generator_is_read_as_results_are_taken(qa: QuestionAnsweringPipeline, ada: dict[str, Any]) -> None:
    taken = []

    def pairs() -> Iterator[dict[str, Any]]:
        for number in range(5):
            taken.append(number)
            yield {**PAIR, "number": number}

    results = qa(pairs())
    assert taken == []
    assert next(results) == ada
    assert taken == [0]
    assert list(results) == [ada] * 4
    with pytest.raises(KeyError):
        next(qa(item for item in [{"question": WHO}]))
    with pytest.raises(ValueError, match="top_k"):
        qa(pairs(), top_k=0)


def test_a_dataset_of_torch_is_read_as_results_are_taken(qa: QuestionAnsweringPipeline, ada: dict[str, Any]) -> None:
    base = type("Dataset", (), {"__module__": "torch.utils.data.dataset"})

    class Rows(base):  # type: ignore[misc, valid-type]
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> dict[str, str]:
            return PAIR  # for any index: that there are two is known from the length only

    results = qa(Rows())
    assert not isinstance(results, list)
    assert list(results) == [ada, ada]


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading is quick, and nothing can be read."""
    monkeypatch.setattr("qa_cluster.reading.local_reader.open_runner", lambda *_args, **_named: None)


@pytest.mark.usefixtures("unread")
def test_defaults_of_calls_can_be_given_at_the_start(
    qa: QuestionAnsweringPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = pipeline("question-answering", top_k=2)
    monkeypatch.setattr(both, "reader", qa.reader)
    assert len(both(question=WHO, context=ADA)) == 2
    assert both(question=WHO, context=ADA, top_k=1)["answer"] == "Ada Lovelace"
    with pytest.raises(ValueError, match="top_k"):
        pipeline("question-answering", top_k=0)


def test_topk_still_works_and_warns(qa: QuestionAnsweringPipeline) -> None:
    with pytest.warns(UserWarning, match="topk is deprecated"):
        assert len(qa(question=WHO, context=ADA, topk=2)) == 2
    with pytest.warns(UserWarning, match="topk is deprecated"):
        assert len(qa(question=WHO, context=ADA, topk=2, top_k=3)) == 3


def test_best_answers_come_first_and_differ(qa: QuestionAnsweringPipeline) -> None:
    found = qa(question=WHO, context=ADA, top_k=5)  # 38984
    scores = [answer["score"] for answer in found]
    assert scores == sorted(scores, reverse=True)
    assert len({answer["answer"].lower() for answer in found}) == 5
    assert all(ADA[answer["start"] : answer["end"]] == answer["answer"] for answer in found)
    assert qa(question=WHO, context=ADA, top_k=np.int64(1)) == found[0]


def test_no_answer_is_an_empty_one_where_it_is_asked_for(qa: QuestionAnsweringPipeline) -> None:
    """14277, 14311, 18719, 5910: it raised, or was never given."""
    question, context = "What is the capital of Belarus?", "It rained yesterday."
    found = qa(question=question, context=context, handle_impossible_answer=True)
    assert (found["answer"], found["start"], found["end"]) == ("", 0, 0)
    assert found["score"] > 0.5
    assert qa(question=question, context=context)["answer"] in context
    several = qa(question=[question, WHO], context=[context, ADA], handle_impossible_answer=True, top_k=2)
    assert [answers[0]["answer"] for answers in several] == ["", "Ada Lovelace"]


@pytest.mark.parametrize("context", [" ", "\n\t", "\u200b"])
def test_a_context_without_words_has_no_answer(qa: QuestionAnsweringPipeline, context: str) -> None:
    nothing = {"start": 0, "end": 0, "answer": ""}
    assert qa(question=WHO, context=context) == {"score": 0.0, **nothing}
    assert qa(question=WHO, context=context, handle_impossible_answer=True) == {"score": 1.0, **nothing}


@pytest.mark.parametrize("before", [0, 20, 45, 70])
def test_answers_are_found_anywhere_in_a_long_context(qa: QuestionAnsweringPipeline, before: int) -> None:
    """2615, 7528, 6144: it failed, or looked at the beginning only."""
    context = FILLER * before + ADA + " " + FILLER * (70 - before)
    found = qa([PAIR, {"question": WHO, "context": context}])
    assert [answer["answer"] for answer in found] == ["Ada Lovelace"] * 2
    assert found[1]["start"] == len(FILLER) * before


def test_windows_longer_than_the_model_reads_are_made_shorter(qa: QuestionAnsweringPipeline) -> None:
    """17241: with max_seq_len beyond the model's own, long texts failed."""
    context = FILLER * 70 + ADA
    assert qa(question=WHO, context=context, max_seq_len=4096)["answer"] == "Ada Lovelace"
    assert qa(question=WHO, context=ADA, max_seq_len=4096)["answer"] == "Ada Lovelace"


def test_a_stride_that_leaves_no_progress_is_refused_or_made_shorter(qa: QuestionAnsweringPipeline) -> None:
    """tokenizers 944: the tokenizer panicked, with an exception that `except Exception` does not catch."""
    context = FILLER * 70 + ADA
    with pytest.raises(ValueError, match=r"doc_stride is 57, must be less than 56"):
        qa(question=WHO, context=context, max_seq_len=65, doc_stride=57)
    long_question = "Tell me please, if you can, " * 33 + WHO
    assert qa(question=long_question, context=context)["answer"] in context


def test_a_long_question_is_cut_only_where_that_is_asked_for(qa: QuestionAnsweringPipeline) -> None:
    long_question = WHO + " Tell me please, if you can." * 12
    whole = qa(question=long_question, context=ADA)
    with pytest.warns(UserWarning, match="cut off after 6 tokens"):
        cut = qa(question=long_question, context=ADA, max_question_len=6)
    assert cut == qa(question=WHO, context=ADA)
    assert cut["score"] != whole["score"]


def test_the_context_of_many_questions_is_tokenized_once(
    qa: QuestionAnsweringPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4748: tokenizing the same context for every question took most of the time."""
    texts = []
    encode = ReaderTokenizer.encode_words
    monkeypatch.setattr(ReaderTokenizer, "encode_words", lambda self, text: texts.append(text) or encode(self, text))
    qa(question=[WHO, WHEN] * 10, context=ADA)
    assert texts == [ADA]


def test_threads_may_share_a_pipeline(qa: QuestionAnsweringPipeline) -> None:
    """tokenizers 537: "Already borrowed"."""
    pairs = [(WHO, ADA), (WHEN, ADA), (WHO, FILLER * 40 + ADA), (WHEN, ADA + FILLER * 3)] * 6
    alone = [qa(question=question, context=context) for question, context in pairs]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda pair: qa(question=pair[0], context=pair[1]), pairs)) == alone


def test_answers_do_not_depend_on_their_batch(qa: QuestionAnsweringPipeline) -> None:
    contexts = [ADA, FILLER * 30 + ADA, FILLER + ADA, ADA + FILLER * 60]
    alone = [qa(question=WHO, context=context, top_k=2) for context in contexts]
    for batch_size in (2, 3, 8):
        together = qa(question=[WHO] * 4, context=contexts, top_k=2, batch_size=batch_size)
        lazily = list(qa(({"question": WHO, "context": one} for one in contexts), top_k=2, batch_size=batch_size))
        for found in (together, lazily):
            for ours, theirs in zip(found, alone, strict=True):
                assert [answer["answer"] for answer in ours] == [answer["answer"] for answer in theirs]
                assert ours[0]["score"] == pytest.approx(theirs[0]["score"], abs=1e-3)


@pytest.mark.usefixtures("unread")
def test_a_task_that_is_not_there_and_arguments_without_effect() -> None:
    with pytest.raises(KeyError) as error:
        pipeline("summarization")
    assert str(error.value).startswith("unknown task 'summarization': this is the pipeline of qa-cluster")
    with pytest.warns(UserWarning, match="torch_dtype has no effect"):
        pipeline("question-answering", torch_dtype="auto", framework=None)
    with pytest.raises(ValueError, match="unknown parameter 'max_length'"):
        pipeline("question-answering", max_length=5)


@pytest.mark.parametrize(
    ("device", "kind", "said"),
    [(0, ModelError, "onnxruntime-gpu"), ("cuda:1", ModelError, "cuda:1"), ("mps", ValueError, "unknown device 'mps'")],
)
def test_a_device_that_is_not_there(device: object, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        pipeline(device=device)


class TorchDevice:
    """Shows itself as a device of torch does."""

    def __str__(self) -> str:
        return "cpu"


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("device", [-1, "cpu", None, TorchDevice()])
def test_names_of_the_processor(device: object) -> None:
    assert pipeline(device=device).reader.device == "cpu"


def test_a_folder_without_a_reader_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="qa-cluster model export deepset/roberta-base-squad2 FOLDER"):
        pipeline("question-answering", model="deepset/roberta-base-squad2")
    with pytest.raises(ModelError, match=r"has no manifest\.json"):
        pipeline("question-answering", model=tmp_path)
    with pytest.raises(ValueError, match="folder of an exported reader, got dict"):
        pipeline("question-answering", model={})  # type: ignore[arg-type]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundled_reader(), tmp_path / "reader"))


def test_a_damaged_file_is_refused(copy: Path) -> None:
    model = bytearray((copy / "reader.onnx").read_bytes())
    model[len(model) // 2] ^= 1
    (copy / "reader.onnx").write_bytes(model)
    with pytest.raises(ModelError, match="damaged or of another export"):
        pipeline(model=copy)
    (copy / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="is not the tokenizer of"):
        pipeline(model=copy)
    (copy / "reader.onnx").unlink()
    with pytest.raises(ModelError, match="tokenizer"):
        pipeline(model=copy)


@pytest.mark.usefixtures("unread")
def test_a_tokenizer_may_be_named_if_it_is_the_readers(copy: Path, tmp_path: Path) -> None:
    for place in (copy, str(copy), copy / "tokenizer.json", bundled_reader()):
        assert pipeline(model=copy, tokenizer=place).task == "question-answering"
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="is not the tokenizer of"):
        pipeline(model=copy, tokenizer=tmp_path)
    with pytest.raises(ValueError, match="leave it out"):
        pipeline(model=copy, tokenizer=object())  # type: ignore[arg-type]


def test_both_runtimes_answer(qa: QuestionAnsweringPipeline) -> None:
    assert qa.reader.runtime == "openvino"
    other = pipeline(runtime="onnxruntime", threads=1)
    assert other(question=WHO, context=ADA)["answer"] == "Ada Lovelace"
    with pytest.raises(ValueError, match="unknown runtime 'tensorrt'"):
        pipeline(runtime="tensorrt")
    with pytest.raises(ValueError, match="needs the runtime onnxruntime"):
        pipeline(runtime="openvino", device="cuda")


def test_logits_that_are_no_numbers_are_an_error(
    qa: QuestionAnsweringPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: LocalReader, windows: list[Any], *, batch_size: int) -> list[Any]:
        return [(np.full(len(window.input_ids), np.nan), np.zeros(len(window.input_ids))) for window in windows]

    monkeypatch.setattr(LocalReader, "read", broken)
    with pytest.raises(ModelError, match="not finite"):
        qa(question=WHO, context=ADA)


def test_importing_the_package_is_light_and_the_pipeline_needs_no_torch() -> None:
    code = (
        "import sys, qa_cluster; heavy = {'numpy', 'tokenizers', 'openvino', 'torch', 'transformers'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules);"
        "qa = qa_cluster.pipeline('question-answering', threads=1);"
        f"assert qa(question={WHO!r}, context={ADA!r})['answer'] == 'Ada Lovelace';"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
