"""qa-cluster as a retriever of LangChain. Install the extra `langchain`."""

from .retriever import QAClusterRetriever

__all__ = ["QAClusterRetriever"]
