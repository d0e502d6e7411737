"""Runs of functions: their plans and sources, how records pass the steps, and how a run spreads over the shards."""
