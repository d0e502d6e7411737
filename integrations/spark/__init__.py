"""Spark: answers questions, prepares documents, and reads and writes documents with a data source.

>>> from qa_cluster.integrations.spark import QAClusterDataSource, ask_questions, read_contexts
>>> spark.dataSource.register(QAClusterDataSource)
>>> documents = spark.read.format("qacluster").option("url", "http://127.0.0.1:8080").load()
"""

from __future__ import annotations

from .answering import ask_questions, read_contexts
from .preparing import embed_documents, extract_files
from .source import QAClusterDataSource

__all__ = ["QAClusterDataSource", "ask_questions", "embed_documents", "extract_files", "read_contexts"]
