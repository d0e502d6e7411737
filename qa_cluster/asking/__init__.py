"""Asks and writes from outside the shards: questions, searches, documents, collections, caches and their freshness."""
