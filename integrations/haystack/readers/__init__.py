"""qa-cluster as an extractive reader of Haystack."""

from .reader import QAClusterReader

__all__ = ["QAClusterReader"]
