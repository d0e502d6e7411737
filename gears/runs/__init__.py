"""Runs of functions: what they read, their steps, the shards they run on."""
