"""Questions and contexts written for these tests, with their parameters. This file imports nothing of this project."""

from __future__ import annotations

from typing import Any

Case = dict[str, Any]

LIGHTHOUSE = (
    "The lighthouse on Gull Rock was built in 1871 by Ingrid Solberg, who had learned her trade in Bergen. "
    "Its lamp burned whale oil until 1902, when the keeper, old Tomas Ek, put in a petroleum burner. "
    "On clear nights the light was seen from forty kilometres away. Fishermen called it the Patient Lady. "
    "In 1936 a storm took the western wall; the wall was rebuilt with granite from the quarry at Hald. "
    "Since 1988 nobody has lived there, and the light is switched on by a cable from the mainland."
)
GARDEN = "Mrs. O'Neill's garden-party — the 3rd since May — cost £1,250.50; half of it (re-paid by J.P.) was for tea."
SCRIPTS = "Zoë naïvely paid 5 € for 東京 tickets - “really”? 👩🏽‍🚀 said Ἀθήνα. Москва is cold; دبي is hot. ½ ﬁnal."
REPEATED = "Paris. PARIS! paris? The capital is Paris, and Paris it stays. " * 3
SPACES = "  \t Anna \n\n  bought   bread .\u00a0\u3000Then she left.  "

QUESTIONS = [
    "Who built the lighthouse?",
    "When did the lamp stop burning whale oil?",
    "What did fishermen call it?",
    "Where did the granite come from?",
    "How is the light switched on?",
    "What is the price of fish in Lisbon?",
]
PARAMETERS: list[dict[str, Any]] = [
    {},
    {"top_k": 3},
    {"top_k": 5, "handle_impossible_answer": True},
    {"handle_impossible_answer": True},
    {"align_to_words": False},
    {"align_to_words": False, "top_k": 4},
    {"max_answer_len": 1},
    {"max_answer_len": 1, "top_k": 3},
    {"max_answer_len": 60},
    {"max_seq_len": 48, "doc_stride": 8},
    {"max_seq_len": 48, "doc_stride": 0, "top_k": 3},
    {"max_seq_len": 56, "doc_stride": 8, "handle_impossible_answer": True, "top_k": 60},
    {"padding": "max_length", "max_seq_len": 64, "doc_stride": 16},
    {"padding": "longest", "max_seq_len": 64, "doc_stride": 16, "top_k": 2},
]
EDGES: list[tuple[str, str]] = [
    ("Who?", "Ada"),
    ("Who?", "Ada wrote."),
    ("?", "."),
    (" ", LIGHTHOUSE),
    ("Who?", " "),
    ("Who?", "\n\t"),
    ("Who?", "\u200b"),
    ("What did it cost?", GARDEN),
    ("Who paid for tickets?", SCRIPTS),
    ("What is the capital?", REPEATED),
    ("What did Anna buy?", SPACES),
    ("Who bought bread?\n", SPACES),
    ("What is it? " * 9, LIGHTHOUSE),
    ("supercalifragilisticexpialidocious", "antidisestablishmentarianism " * 4),
    ("Who wrote the letter?", "x" * 40),
]


def cases() -> list[Case]:
    """Return every question with every parameter, and every edge case with some."""
    found = [
        {"question": question, "context": LIGHTHOUSE, "parameters": PARAMETERS[(number + 5 * row) % len(PARAMETERS)]}
        for row, question in enumerate(QUESTIONS)
        for number in range(len(PARAMETERS) // 2)
    ]
    for question, context in EDGES:
        for parameters in ({}, {"handle_impossible_answer": True}, {"align_to_words": False, "top_k": 2}):
            found.append({"question": question, "context": context, "parameters": parameters})
    return found
