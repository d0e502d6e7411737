"""Asks questions, searches, and manages documents, collections and caches, for processes outside the shards."""
