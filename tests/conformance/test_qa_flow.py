"""The flow of the original question answering system on RedisAI and RedisGears, from loading to benchmark.

The system has a TorchScript reader on each shard, a tokenizer for stored and new sentences, and a hooked GET that
computes the answer on a miss. The test uses three shards, a client for clusters, and scripts in the style of that
system.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis

from tests.conformance.deployment import Deployment
from tests.harness.polling import eventually

covers = pytest.mark.covers
pytestmark = [pytest.mark.shards(3), pytest.mark.torch]

TOKENIZER = """
import zlib
import numpy as np
import redisAI

tokenizer = None

def loadTokenizer():
    global tokenizer
    tokenizer = lambda text: [1000 + zlib.crc32(word.lower().strip('.,?').encode()) % 29000 for word in text.split()]
    return tokenizer

def tokenise(record):
    global tokenizer
    if not tokenizer:
        tokenizer = loadTokenizer()
    document = record['key'][len('sentence:'):]
    for index, text in record['value'].items():
        ids = np.array(tokenizer(text), dtype=np.int64)
        tensor = redisAI.createTensorFromBlob('INT64', [len(ids)], ids.tobytes())
        redisAI.setTensorInKey('tokenized:bert:qa:%s:%s' % (document, index), tensor)
    execute('INCRBY', 'processed{%s}' % hashtag(), len(record['value']))

def onRegistered():
    loadTokenizer()
    log('tokenizer loaded on shard %s' % hashtag())

gb = GB('KeysReader')
gb.foreach(tokenise)
gb.count()
gb.run('sentence:*', keyTypes=['hash'])

gb = GB('KeysReader')
gb.foreach(tokenise)
gb.register('sentence:*', keyTypes=['hash'], eventTypes=['hset'], onRegistered=onRegistered, mode='async_local')
"""

ANSWER = """
import zlib
import numpy as np
import redisAI

model_key = None
CLS, SEP = 101, 102

def ids_of(text):
    return [1000 + zlib.crc32(word.lower().strip('.,?').encode()) % 29000 for word in text.split()]

async def answer(sentence_key, question):
    global model_key
    if model_key is None:
        model_key = 'bert-qa{%s}' % hashtag()
    asked = ids_of(question)
    tensor = redisAI.getTensorFromKey('tokenized:bert:qa:' + sentence_key)
    context = np.frombuffer(redisAI.tensorGetDataAsBlob(tensor), dtype=np.int64).tolist()
    ids = np.array([[CLS, *asked, SEP, *context, SEP]], dtype=np.int64)
    types = np.array([[0] * (len(asked) + 2) + [1] * (len(context) + 1)], dtype=np.int64)
    mask = np.ones_like(ids)
    runner = redisAI.createModelRunner(model_key)
    for name, values in (('input_ids', ids), ('attention_mask', mask), ('token_type_ids', types)):
        tensor = redisAI.createTensorFromBlob('INT64', list(values.shape), values.tobytes())
        redisAI.modelRunnerAddInput(runner, name, tensor)
    redisAI.modelRunnerAddOutput(runner, 'answer_start_scores')
    redisAI.modelRunnerAddOutput(runner, 'answer_end_scores')
    results = await redisAI.modelRunnerRunAsync(runner)
    start, end = (int(np.argmax(np.frombuffer(redisAI.tensorGetDataAsBlob(r), dtype=np.float32))) for r in results)
    document, index = sentence_key.rsplit(':', 1)
    words = execute('HGET', 'sentence:' + document, index).split()
    first = start - len(asked) - 2
    return ' '.join(words[first:first + end - start + 1])

async def qa(record):
    log('keymiss of ' + record['key'])
    _, sentence_key, question = record['key'].split('_')
    text = await answer(sentence_key, question)
    execute('SET', record['key'], text)
    override_reply(text)

async def trigger(record):
    return await answer(record[1], record[2])

GB('KeysReader').map(qa).register(prefix='bertqa*', commands=['get'], eventTypes=['keymiss'], mode='async_local')
GB('CommandReader').map(trigger).register(trigger='RunQABERT', mode='async_local')
"""

SENTENCES = {
    "0": "Bats carry many viruses.",
    "1": "The virus spreads in droplets.",
    "2": "Fever is the first symptom of the infection.",
}
QUESTIONS = {
    ("1", "How far does the virus fly?"): "The virus",
    ("2", "When does fever begin?"): "Fever is",
    ("0", "What do bats eat?"): "Bats carry",
}


def answer_key(tag: str, number: int, sentence: str, question: str) -> str:
    return f"bertqa{{{tag}}}_{document(tag, number)}:{sentence}_{question}"


def document(tag: str, number: int) -> str:
    return f"PMC{number}.xml:{{{tag}}}"


def registrations(deployment: Deployment, shard: int) -> dict[str, Any]:
    """The counters of a shard's hooked GET."""
    entries = [e["RegistrationData"] for e in deployment.registrations(shard) if e["reader"] == "KeysReader"]
    (hooked,) = [entry for entry in entries if "keymiss" in str(entry["args"])]
    return hooked


@pytest.fixture
def system(deployment: Deployment, torch_models: dict[str, bytes]) -> tuple[list[str], Any]:
    """Set up settings, models, tokenizer and answers. Return the shards' hash tags and a client of the cluster."""
    for shard, node in enumerate(deployment.nodes):
        node.config_set("proto-max-bulk-len", "2048mb")
        assert deployment.raw("RG.REFRESHCLUSTER", shard=shard) == "OK"
        assert deployment.raw("RG.CONFIGSET", "ExecutionMaxIdleTime", 300_000, shard=shard) == ["OK"]
    tags, errors = deployment.raw("RG.PYEXECUTE", "GB('ShardsIDReader').map(lambda x: hashtag()).run()")
    assert len(set(tags)) == 3
    assert not errors
    cluster = deployment.cluster()
    for tag in tags:
        reply = cluster.execute_command(
            "AI.MODELSET", f"bert-qa{{{tag}}}", "TORCH", "CPU", "BLOB", torch_models["reader"]
        )
        assert reply == "OK"
        info = cluster.execute_command("AI.INFO", f"bert-qa{{{tag}}}")
        assert info[:6] == ["key", f"bert-qa{{{tag}}}", "type", "MODEL", "backend", "TORCH"]
        cluster.hset(f"sentence:{document(tag, 1)}", mapping=SENTENCES)
    # for a script with run() and register(), the reply has no results of the run, as in RedisGears
    assert deployment.raw("RG.PYEXECUTE", TOKENIZER, "REQUIREMENTS", "numpy") == "OK"
    assert deployment.raw("RG.PYEXECUTE", ANSWER, "REQUIREMENTS", "numpy", shard=1) == "OK"
    for shard in range(3):
        eventually(lambda shard=shard: len(deployment.registrations(shard)) == 3)  # type: ignore[misc]
    for tag in tags:
        eventually(lambda tag=tag: int(cluster.get(f"processed{{{tag}}}") or 0) >= 3)  # type: ignore[misc]
        # the registration tokenizes new sentences
        cluster.hset(f"sentence:{document(tag, 2)}", mapping=SENTENCES)
        for index in SENTENCES:
            key = f"tokenized:bert:qa:{document(tag, 2)}:{index}"
            eventually(lambda key=key: cluster.exists(key))  # type: ignore[misc]
    yield tags, cluster
    cluster.close()
    for shard in range(3):
        deployment.raw("RG.CONFIGSET", "ExecutionMaxIdleTime", 5000, shard=shard)


@covers(
    "redgrease",
    "the original question answering system: models per shard, tokenizing in bulk and on write, GET that computes",
)
def test_question_answering(deployment: Deployment, system: tuple[list[str], Any]) -> None:
    tags, cluster = system
    for number in (1, 2):
        for tag in tags:
            for (sentence, question), expected in QUESTIONS.items():
                key = answer_key(tag, number, sentence, question)
                assert cluster.get(key) == expected
                assert cluster.get(key) == expected
                assert cluster.type(key) == "string"
    for shard in range(3):
        # the second read did not run the function
        counters = registrations(deployment, shard)
        assert (counters["numTriggered"], counters["numSuccess"], counters["numFailures"]) == (6, 6, 0)
    # the older form of the answer key
    sentence_key = f"{document(tags[0], 1)}:1"
    owner = next(s for s in range(3) if any(tags[0] in key for key in deployment.nodes[s].keys("bert-qa*")))
    assert deployment.raw("RG.TRIGGER", "RunQABERT", sentence_key, "Where is the virus?", shard=owner) == ["The virus"]


@covers("GearsBuilder", "KeysReader: commands= keeps MOVED", better="redirects reach the client (RedisGears lost them)")
def test_benchmark(deployment: Deployment, system: tuple[list[str], Any]) -> None:
    tags, _ = system
    answers: list[Any] = []

    def ask(number: int) -> None:
        client = deployment.cluster()
        for turn in range(10):
            tag = tags[(number + turn) % 3]
            answers.append(client.get(answer_key(tag, 1, "1", f"Does virus {number} number {turn} fly?")))
        client.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["virus spreads"] * 60
    moved = 0
    for tag in tags:
        for node in deployment.nodes:
            try:
                assert node.get(answer_key(tag, 1, "2", "When does fever end?")) == "Fever is"
            except redis.ResponseError as error:
                assert str(error).startswith("MOVED")
                moved += 1
    assert moved == 6


@covers("GearsBuilder", "KeysReader: commands= without storing the answer")
def test_without_cache(deployment: Deployment, system: tuple[list[str], Any]) -> None:
    tags, cluster = system
    for entry in deployment.registrations():
        if entry["reader"] != "KeysReader" or "keymiss" in str(entry["RegistrationData"]["args"]):
            deployment.raw("RG.UNREGISTER", entry["id"])
            # a run on all shards, because a worker that has missed the removal could restore the session's other
            # registration
            assert deployment.raw("RG.PYEXECUTE", "GB('ShardsIDReader').count().run()")[0] == ["3"]
    for shard in range(3):
        eventually(lambda shard=shard: len(deployment.registrations(shard)) == 1)  # type: ignore[misc]
    assert deployment.raw("RG.PYEXECUTE", ANSWER.replace("    execute('SET', record['key'], text)\n", "")) == "OK"
    for shard in range(3):
        eventually(lambda shard=shard: len(deployment.registrations(shard)) == 3)  # type: ignore[misc]
    key = answer_key(tags[1], 2, "0", "What do bats eat?")
    assert [cluster.get(key), cluster.get(key)] == ["Bats carry"] * 2
    assert not cluster.exists(key)
