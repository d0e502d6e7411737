"""Generated text of many scripts, with characters that break offsets: emoji, combining marks, odd spaces, controls."""

# ruff: noqa: RUF001 (characters that look like others are the point)

from __future__ import annotations

from hypothesis import strategies as st

FRAGMENTS = (
    "The cat sat on the mat.",
    " Dr. Smith paid $3.50 (approx.) in 1999!",
    "Ünïcödé naïve café",
    "Привет, мир. Как дела?",
    "你好。我是人！东京都",
    "こんにちは世界。カタカナ",
    "안녕하세요 세계.",
    "नमस्ते दुनिया। मैं हूँ।",
    "مرحبا بالعالم؟ نعم۔",
    "สวัสดีชาวโลก ที่นี่",
    "ភាសាខ្មែរ។ မြန်မာ။",
    "சென்னை நகரம். বাংলা।",
    "هذا كِتَابٌ. می‌خواهم بروم.",
    "𝐀𝐁𝐂 𠀀𠀁。𒀀 𞤀𞤣𞤤𞤢𞤥",
    "👩‍👩‍👧‍👦 🇩🇪 😀!",
    "e\u0301 o\u0308 \u200b\u200d",
    "\n\n",
    "\r\n",
    "\t|a|b|\n|---|---|\n",
    "- item one\n- item two\n",
    "```\nfor (i = 0; i < n; i++) { x(); }\n```\n",
    " \u00a0\u2003\u3000 ",
    "\x00\x1b\x85\u2028\u2029",
    "aGVsbG8gd29ybGQ" * 8,
    "snake_case don't O\u2019Neill's ffi\ufb03",
    "“Quoted,” he said. ‘Yes.’",
    "İstanbul ǅ ß ŉ",
)


def texts(max_fragments: int = 12) -> st.SearchStrategy[str]:
    """Text of whole fragments and of single characters of any kind except lone surrogates."""
    anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    part = st.one_of(st.sampled_from(FRAGMENTS), anything, st.just(" "))
    return st.lists(part, max_size=max_fragments).map("".join)
