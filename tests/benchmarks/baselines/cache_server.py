"""The usual cached endpoint: FastAPI and redis-py, `GET` the answer's JSON by its question.

`QA_BENCH_REDIS` is the server's URL.
"""

from __future__ import annotations

import os

import redis.asyncio as redis
from fastapi import FastAPI, HTTPException, Response

app = FastAPI()
client = redis.Redis.from_url(os.environ["QA_BENCH_REDIS"])


@app.get("/qa")
async def qa(question: str) -> Response:
    """The stored answer."""
    found = await client.get("answer:" + question)
    if found is None:
        raise HTTPException(404)
    return Response(found, media_type="application/json")
