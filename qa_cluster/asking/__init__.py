"""Asks and writes from outside the shards: caches that are never stale, waves, assembly, documents."""
