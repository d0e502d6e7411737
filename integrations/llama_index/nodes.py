"""Turns passages of the service into LlamaIndex nodes."""

from __future__ import annotations

from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode

from qa_cluster.integrations.service.passages import FoundPassage

# Metadata fields about a passage that are left out of the text for language models and embeddings.
_POSITIONS = [
    *("document_id", "document_version", "start", "end", "score", "source"),
    *("sentence_start", "sentence_end", "answer_start", "answer_end", "pinned"),
]


def node_of(passage: FoundPassage) -> NodeWithScore:
    """Return the node of a passage, with offsets in the stored text. The node's source is the stored document."""
    node = TextNode(
        id_=passage.id,
        text=passage.text,
        metadata=dict(passage.facts),
        start_char_idx=passage.start,
        end_char_idx=passage.end,
        excluded_llm_metadata_keys=_POSITIONS,
        excluded_embed_metadata_keys=_POSITIONS,
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=passage.document_id)},
    )
    return NodeWithScore(node=node, score=passage.score)
