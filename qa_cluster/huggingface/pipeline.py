"""`qa_cluster.pipeline`: the question-answering pipeline that transformers 5.3 removed, without torch.

>>> from qa_cluster import pipeline
>>> qa = pipeline("question-answering")
>>> answer = qa(question="Who wrote the first program?", context="Ada Lovelace wrote the first program in 1843.")
>>> answer["answer"], answer["start"], answer["end"]
('Ada Lovelace', 0, 12)

Models are folders that `qa-cluster model export` writes. docs/pipeline.md lists the differences from transformers.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

from qa_cluster.errors import InputTooLong, InvalidInput, ModelError
from qa_cluster.reading.bundled import bundled_reader
from qa_cluster.reading.local_reader import LocalReader, check_tokenizer
from qa_cluster.reading.manifest import MANIFEST_FILE

from .answers import Answer, Answers, Prepared, Preparer
from .inputs import InvalidKey, InvalidValue, Sample, create_sample, inputs_of
from .parameters import Parameters, check_padding

TASK = "question-answering"
# The pipeline splits `batch_size` times this number of questions into windows before the model reads the first window.
# The model then reads windows of similar length together. For a generator or a dataset, this number is 1.
READ_AHEAD = 16
_INPUTS = ("X", "data", "question", "context")
# Arguments of transformers.pipeline that controlled how it fetched or ran a checkpoint.
_WITHOUT_EFFECT = frozenset(
    {
        "config", "device_map", "dtype", "feature_extractor", "framework", "image_processor", "model_kwargs",
        "modelcard", "num_workers", "processor", "revision", "token", "torch_dtype", "trust_remote_code",
        "use_auth_token", "use_fast",
    }
)  # fmt: skip


def pipeline(
    task: str = TASK,
    model: str | PathLike[str] | None = None,
    *,
    tokenizer: str | PathLike[str] | None = None,
    device: object = None,
    runtime: str | None = None,
    threads: int | None = None,
    batch_size: int | None = None,
    **parameters: Any,
) -> QuestionAnsweringPipeline:
    """Load a reader and return a pipeline that answers questions with it.

    Args:
        task: ``question-answering``, the only task.
        model: the folder of an exported reader; default: the bundled reader.
        tokenizer: if given, it must be the reader's tokenizer: its folder or its tokenizer.json.
        device: ``cpu``, -1 or None for the CPU; ``cuda``, ``cuda:N`` or N for a GPU, which needs onnxruntime-gpu.
        runtime: ``openvino`` or ``onnxruntime``; default: the installed runtime that suits the reader and the
            processor.
        threads: the threads of the runtime; default: the number of cores that this process may use.
        batch_size: the number of windows in one run of the model, default 1.
        parameters: the defaults for calls, see `QuestionAnsweringPipeline.__call__`.

    Raises:
        ValueError, KeyError: an argument is wrong; both are also `qa_cluster.errors.InvalidInput`.
        ModelError: the folder has no reader, or the reader is damaged.
    """
    if task != TASK:
        raise InvalidKey(f"unknown task {task!r}: the pipeline of qa-cluster has only {TASK!r}")
    folder = _folder(model)
    for name in sorted(_WITHOUT_EFFECT & set(parameters)):
        if parameters.pop(name) is not None:
            warnings.warn(f"{name} has no effect: models are run as they were exported", stacklevel=2)
    with _value_errors():
        defaults = _parameters(parameters, Parameters(), stacklevel=3)
        reader = LocalReader(folder, runtime=runtime, device=_device(device), threads=threads)
    if tokenizer is not None:
        if not isinstance(tokenizer, str | PathLike):
            raise InvalidValue(
                f"tokenizer must be a folder or a tokenizer.json, got {type(tokenizer).__name__}: leave it out,"
                " because a reader has its own tokenizer"
            )
        if Path(tokenizer) != Path(model or folder):
            check_tokenizer(Path(tokenizer), reader.manifest)
    return QuestionAnsweringPipeline(reader, defaults, _batch_size(batch_size, 1))


class QuestionAnsweringPipeline:
    """Answers questions from contexts. `pipeline` creates it; several threads may share it."""

    task = TASK
    create_sample = staticmethod(create_sample)

    def __init__(self, reader: LocalReader, defaults: Parameters, batch_size: int = 1) -> None:
        self.reader = reader
        self._defaults = defaults
        self._batch_size = batch_size

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer questions.

        Args:
            question, context: two strings, two lists of the same length, or a list of questions and one context. Two
                strings may also be positional. Instead of both, `data`, `X` or the only positional argument may be a
                dictionary with these keys, a list of dictionaries or of samples, a generator, or a dataset of torch.
            top_k: limit of answers, default 1.
            doc_stride: tokens that neighbouring windows of a long context share, default min(max_seq_len // 2, 128).
            max_answer_len: limit of tokens in an answer, default 15.
            max_seq_len: limit of tokens in a window, default 384 or the model's limit.
            max_question_len: tokens after which a question is cut off; default: no cut.
            handle_impossible_answer: whether the result may be the empty answer, default False.
            align_to_words: whether answers start and end at whole words, default True.
            padding: has no effect on answers.
            batch_size: the number of windows in one run of the model.

        Returns:
            The result of a question depends on the number of its answers:

            - one answer: ``{"score", "start", "end", "answer"}`` without a list, even if `top_k` is more than 1
            - several answers: a list of up to `top_k` such dictionaries, the best first

            For one question, the call returns its result, even if the question was given in a list of one. For several
            questions, or for a dictionary of lists, the call returns a list with the result of each question. For a
            generator or a dataset, the call returns an iterator over the results.

            `start` and `end` are code points of the context. The empty answer is ``""`` from 0 to 0. A context without
            tokens always gets the empty answer.

        Raises:
            ValueError, KeyError: as transformers did; both are also `qa_cluster.errors.InvalidInput`.
        """
        kwargs.pop("num_workers", None)
        batch_size = _batch_size(kwargs.pop("batch_size", None), self._batch_size)
        inputs = inputs_of(args, {name: kwargs.pop(name) for name in _INPUTS if name in kwargs})
        with _value_errors():
            parameters = _parameters(kwargs, self._defaults, stacklevel=3)
        if inputs.lazy:
            return self._answers(inputs.samples, parameters, batch_size, 1)
        answers = list(self._answers(inputs.samples, parameters, batch_size, READ_AHEAD))
        return answers[0] if inputs.single else answers

    def _answers(
        self, samples: Iterable[Sample], parameters: Parameters, batch_size: int, read_ahead: int
    ) -> Iterator[Answer | list[Answer]]:
        preparer = Preparer(self.reader.tokenizer, self.reader.manifest)
        source = iter(samples)
        while taken := list(islice(source, batch_size * read_ahead)):
            with _value_errors():
                prepared = [preparer.prepare(one.question_text, one.context_text, parameters) for one in taken]
            yield from self._read(prepared, parameters, batch_size)

    def _read(
        self, prepared: list[Prepared], parameters: Parameters, batch_size: int
    ) -> Iterator[Answer | list[Answer]]:
        if any(pair.question_truncated for pair in prepared):
            warnings.warn(f"a question was cut off after {parameters.max_question_len} tokens", stacklevel=2)
        logits = self.reader.read([window for pair in prepared for window in pair.windows], batch_size=batch_size)
        first = 0
        for pair in prepared:
            answers = Answers(pair, parameters)
            last = first + len(pair.windows)
            for window, (starts, ends) in zip(pair.windows, logits[first:last], strict=True):
                answers.add(window, starts, ends)
            first = last
            yield answers.result()


def _folder(model: str | PathLike[str] | None) -> Path:
    if model is None:
        return bundled_reader()
    if not isinstance(model, str | PathLike):
        raise InvalidValue(f"model must be the folder of an exported reader, got {type(model).__name__}")
    folder = Path(model)
    if not (folder / MANIFEST_FILE).is_file():
        what = "has no manifest.json" if folder.is_dir() else "is not a folder"
        raise ModelError(
            f"model {str(model)!r} {what}: export the checkpoint first, `qa-cluster model export {model} FOLDER`, and "
            "give that folder"
        )
    return folder


def _device(device: object) -> str:
    """Return the name of a device, given as a name, a number (-1: CPU) or a `torch.device`."""
    if device is None or device == -1:
        return "cpu"
    if isinstance(device, int) and not isinstance(device, bool):
        return f"cuda:{device}"
    return str(device)


def _parameters(given: Mapping[str, Any], defaults: Parameters, stacklevel: int) -> Parameters:
    given = dict(given)
    check_padding(given.pop("padding", None))
    topk = given.pop("topk", None)
    if topk is not None:
        warnings.warn("topk is deprecated, use top_k instead", UserWarning, stacklevel=stacklevel)
        if given.get("top_k") is None:
            given["top_k"] = topk
    return Parameters.of(given, default=defaults)


def _batch_size(given: object, default: int) -> int:
    if given is None:
        return default
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise InvalidValue(f"batch_size must be an integer of at least 1, got {given!r}")
    return given


@contextmanager
def _value_errors() -> Iterator[None]:
    """In the block, convert InvalidInput and InputTooLong to an exception that is also a ValueError, because
    transformers raised a ValueError.
    """
    try:
        yield
    except (InvalidKey, InvalidValue):
        raise
    except (InvalidInput, InputTooLong) as error:
        raise InvalidValue(str(error)) from error
