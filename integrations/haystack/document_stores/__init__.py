"""qa-cluster as a document store of Haystack."""

from .document_store import QAClusterDocumentStore

__all__ = ["QAClusterDocumentStore"]
