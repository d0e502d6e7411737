"""The bundled encoder on a whole cluster: questions find documents that share no word with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from qa_cluster import keys
from qa_cluster.client import Client, NotFound
from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.errors import InvalidInput
from qa_cluster.ranking.terms import question_terms
from qa_cluster.reading.bundled import bundled_encoder
from qa_cluster.reading.manifest import MANIFEST_FILE
from qa_cluster.types import Document
from qa_cluster.vectors.encoder_manifest import EncoderManifest
from qa_cluster.vectors.local_encoder import LocalEncoder
from tests.harness.polling import eventually
from tests.harness.system import System

ENCODER = EncoderManifest.load(bundled_encoder() / MANIFEST_FILE)
DOCUMENTS = {
    "emerald": "Emeralds are given to people who were born in the fifth month of the year.",
    "language": "Bjarne Stroustrup developed it as an extension of another language.",
    "physician": "Children under twelve should not take this medicine without advice from a physician.",
    "tide": "The sea rises and falls twice a day because the moon attracts the water.",
}
QUESTIONS = {
    "Which birthstone belongs to May?": "emerald",
    "Is the drug safe for kids?": "physician",
    "Why do oceans move?": "tide",
}


@pytest.fixture(scope="module")
def filled(system: System) -> Iterator[System]:
    """The system with all documents of this file and their vectors."""
    with ClusterClient(system.url) as client:
        for name, text in DOCUMENTS.items():
            client.put_document(f"meaning-{name}", text)
        eventually(lambda: unembedded(system) == 0 and embedded(system) >= len(DOCUMENTS), 120)
        yield system
        for name in DOCUMENTS:
            client.delete_document(f"meaning-{name}")


@pytest.fixture(scope="module")
def encoder() -> LocalEncoder:
    return LocalEncoder()


def test_vectors_of_a_client_are_used_if_they_fit(filled: System, service: System, encoder: LocalEncoder) -> None:
    """The shard uses the client's vectors if they fit its encoder, the document and the sentences."""
    text = "Penguins cannot fly. They swim very well in cold water."
    document = Document("meaning-client", text, "Birds", {"year": 1})
    (vectors,) = encoder.prepare([document])
    assert vectors is not None
    count = embedded(filled)
    with Client(f"http://127.0.0.1:{service.port}", timeout=120) as client:

        def put(**changes: Any) -> str:
            given = vectors.to_dict() | changes
            return client.put_document(document.id, text, "Birds", {"year": 1}, vectors=given).vectors

        try:
            assert put() == "stored"
            assert embedded(filled) == count + 1
            assert put() == "stored", "a repeated write stores the same vectors again"
            cosine, found = by_meaning(filled, "Which birds are unable to rise into the air?")
            assert found == document.id and cosine > 0.2
            assert put(encoder="0" * 16) == "other_encoder"
            assert put(version="0" * 16) == "other_document"
            assert put(splitter="0") == "other_sentences"
            assert embedded(filled) == count + 1
            with pytest.raises(InvalidInput, match="sentences is 9, the passages have 2 sentences"):
                put(sentences=9)
            with pytest.raises(InvalidInput, match="vectors need wait"):
                client.put_document("meaning-other", "Not stored.", wait=False, vectors=vectors.to_dict())
            with pytest.raises(NotFound):
                client.get_document("meaning-other")
            assert client.put_document("meaning-client", "Cats purr.").vectors == ""
            eventually(lambda: unembedded(filled) == 0 and embedded(filled) == count + 1, 120)
        finally:
            client.delete_document("meaning-client")


def unembedded(system: System) -> int:
    return sum(int(shard["unembedded"]) for shard in system.status()["shards"])


def on_partitions(system: System, name: str, *arguments: object) -> list[Any]:
    """Send a command to the indexes of all partitions and return the replies."""
    replies = []
    with redis.RedisCluster.from_url(system.url) as client:
        for tag in keys.partition_tags(int(client.get(keys.PARTITIONS_KEY) or 0)):
            key = keys.index_key(tag)
            node = client.get_node_from_key(key)
            assert node is not None
            with redis.Redis(host=str(node.host), port=int(node.port)) as shard:
                replies.append(shard.execute_command(name, key, *arguments))
    return replies


def embedded(system: System) -> int:
    """The number of documents with vectors of the bundled encoder."""
    found = 0
    for reply in on_partitions(system, "QA.INDEX.INFO"):
        for encoder in [] if reply is None else reply[reply.index(b"vectors") + 1]:
            if encoder[1] == ENCODER.digest:
                found += encoder[encoder.index(b"documents") + 1]
    return found


def by_meaning(system: System, question: str) -> tuple[float, str]:
    """The best cosine of all passages, and the passage's document."""
    with redis.Redis.from_url(system.url) as client:
        digest, _, packed, weight, missing = client.execute_command("RG.TRIGGER", "qa.embed", question)
    assert digest == ENCODER.digest
    vector = ("VECTOR", digest, float(weight), float(missing), packed)
    found = []
    for reply in on_partitions(system, "QA.INDEX.RANK", 5, 100, *vector, "DISTINCT", "TERMS", 0):
        if reply is not None:
            found += [(float(passage[0]), hit[0].decode()) for hit, passage in zip(reply[3], reply[-1], strict=True)]
    return max(found)


def test_up_loads_the_bundled_encoder_next_to_the_reader(system: System) -> None:
    shown = system.cli("model", "list", "--json").stdout
    rows = {row["kind"]: row for row in json.loads(shown)}
    assert rows["encoder"]["name"] == ENCODER.name
    assert (rows["encoder"]["default"], rows["reader"]["default"]) == (False, True)


@pytest.mark.parametrize(("question", "document"), QUESTIONS.items())
def test_a_document_is_found_without_a_common_word(filled: System, question: str, document: str) -> None:
    assert not set(question_terms(question)) & set(question_terms(DOCUMENTS[document]))
    cosine, found = by_meaning(filled, question)
    assert found == f"meaning-{document}"
    assert cosine > 0.2


def test_metrics_and_status_show_the_number_of_pending_documents(filled: System) -> None:
    assert unembedded(filled) == 0
    assert "without vectors" not in filled.cli("status").stdout
    for node in filled.nodes:
        assert int(filled.info(node)["qa_unembedded_documents"]) == 0
