"""qa-cluster as a retriever of Haystack."""

from .retriever import QAClusterPassageRetriever

__all__ = ["QAClusterPassageRetriever"]
