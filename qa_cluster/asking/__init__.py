"""Questions, searches, documents, collections, caches and their freshness, for processes outside the shards."""
