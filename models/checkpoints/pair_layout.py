"""Finds out how a tokenizer joins a question and a context, and checks that shards can do the same.

Shards tokenize sentences without the question, and put the tokens of the question before them. This is correct only for
some tokenizers. The tokens of a pair must be the tokens of the question and of the context, each tokenized alone, with
the same special tokens around them for all texts. The check uses texts that tokenizers treat in special ways: white
space at their ends, characters of several code points, bytes or pieces, and scripts without spaces.
"""

from typing import Any

from qa_cluster.errors import ModelError
from qa_cluster.reading.manifest import PairLayout

PROBES = (
    ("Who wrote it?", "Ada wrote it."),
    ("who wrote it", "it"),
    (" Who wrote it? ", " Ada wrote it."),
    ("Où est né l'auteur ?", "Né à Coyoacán, l\u2019auteur aime le café."),
    ("Who flew 👩‍🚀?", "👩‍🚀 flew to the 🌙; cafe\u0301 au lait."),
    ("誰が書いた\uff1f", "東京は日本の首都です。"),
    ("What  is\nit?", "Two  spaces,\ta tab\nand lines"),
    ("5 – 3?", "1,000.50 – “quoted” … [SEP-like] 'text'"),
)


def learn_pair_layout(tokenizer: Any, source: str) -> PairLayout:
    """Return the pair layout of a fast transformers `tokenizer`: the special tokens around a question and a context.
    Raises ModelError if shards cannot build the pairs of this tokenizer. `source` names the checkpoint in the error.
    """
    backend = tokenizer.backend_tokenizer
    question, context = PROBES[0]
    joined = backend.encode(question, context)
    asked = [place for place, part in enumerate(joined.sequence_ids) if part == 0]
    answered = [place for place, part in enumerate(joined.sequence_ids) if part == 1]
    head, tail = (asked or [0])[0], (answered or [0])[-1] + 1
    in_order = asked == list(range(head, head + len(asked))) and answered == list(range(tail - len(answered), tail))
    first = tail - len(answered)
    if (
        not asked
        or not answered
        or not in_order
        or not head
        or head + len(asked) == first
        or tail == len(joined.ids)
        or any(joined.type_ids[:first])
        or len(set(joined.type_ids[first:])) != 1
        or joined.type_ids[first] not in (0, 1)
        or tokenizer.cls_token_id not in (None, joined.ids[0])
    ):
        raise ModelError(
            f"tokenizer of {source!r} does not lay out pairs as [CLS] question [SEP] context [SEP]: {joined.tokens}"
        )
    layout = PairLayout(
        head=tuple(joined.ids[:head]),
        middle=tuple(joined.ids[head + len(asked) : first]),
        tail=tuple(joined.ids[tail:]),
        context_type=joined.type_ids[first],
    )
    for probe in PROBES:
        _check(backend, layout, *probe, source=source)
    return layout


def _check(backend: Any, layout: PairLayout, question: str, context: str, *, source: str) -> None:
    asked = backend.encode(question, add_special_tokens=False)
    answered = backend.encode(context, add_special_tokens=False)
    expected = backend.encode(question, context)
    built = [*layout.head, *asked.ids, *layout.middle, *answered.ids, *layout.tail]
    first = len(built) - len(answered.ids) - len(layout.tail)
    last = first + len(answered.ids)
    if built != expected.ids or expected.offsets[first:last] != answered.offsets:
        raise ModelError(
            f"tokenizer of {source!r} tokenizes a context differently after a question, for example {question!r} and "
            f"{context!r}: shards cannot use it, because they tokenize sentences alone"
        )
