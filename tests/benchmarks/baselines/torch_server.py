"""The server that a capable user writes today: FastAPI, BM25 in memory, PyTorch float32, the best of eight sentences.

It runs one inference at a time with all threads of the machine. Plain PyTorch is fastest this way, because parallel
inferences only compete for the cores. It reads the sentences from a JSON list and the checkpoint from a folder:
`QA_BENCH_SENTENCES`, `QA_BENCH_CHECKPOINT`.
"""

from __future__ import annotations

import asyncio
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import bm25s
import torch
from fastapi import FastAPI
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

torch.set_num_threads(os.cpu_count() or 1)
SENTENCES: list[str] = json.loads(Path(os.environ["QA_BENCH_SENTENCES"]).read_text())
CHECKPOINT = os.environ["QA_BENCH_CHECKPOINT"]
K = 8
MAX_ANSWER_TOKENS = 30

tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
model = AutoModelForQuestionAnswering.from_pretrained(CHECKPOINT).eval()
index = bm25s.BM25()
index.index(bm25s.tokenize(SENTENCES, stopwords="en", show_progress=False), show_progress=False)
pool = ThreadPoolExecutor(1)
app = FastAPI()


def read(question: str) -> dict[str, Any]:
    """Rank, read eight sentences in one batch, decode the best span over null."""
    tokens = bm25s.tokenize([question], stopwords="en", show_progress=False)
    found, _ = index.retrieve(tokens, k=K, show_progress=False)
    texts = [SENTENCES[int(i)] for i in found[0]]
    batch = tokenizer(
        [question] * K, texts, truncation="only_second", max_length=512, padding=True, return_tensors="pt",
        return_offsets_mapping=True,
    )  # fmt: skip
    offsets = batch.pop("offset_mapping")
    with torch.inference_mode():
        out = model(**batch)
    best = (float("-inf"), "", 0)
    for row in range(K):
        context = torch.tensor([s == 1 for s in batch.sequence_ids(row)])
        start = out.start_logits[row].masked_fill(~context, float("-inf"))
        end = out.end_logits[row].masked_fill(~context, float("-inf"))
        scores = (start[:, None] + end[None, :]).triu().tril(MAX_ANSWER_TOKENS - 1)
        scores = scores.masked_fill(scores == 0, float("-inf"))
        flat = int(scores.argmax())
        i, j = divmod(flat, scores.shape[1])
        null = out.start_logits[row, 0] + out.end_logits[row, 0]
        score = float(scores[i, j] - null)
        if score > best[0]:
            best = (score, texts[row][int(offsets[row, i, 0]) : int(offsets[row, j, 1])], row)
    return {"question": question, "answer": best[1], "score": best[0], "sentence": texts[best[2]]}


@app.get("/qa")
async def qa(question: str) -> dict[str, Any]:
    """Answer one question."""
    return await asyncio.get_running_loop().run_in_executor(pool, read, question)
