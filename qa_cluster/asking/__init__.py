"""Asking and writing from outside the shards: connections, routing, caches that are never stale, waves, assembly."""
