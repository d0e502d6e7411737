"""Turns a checked question into its answer: single flight, caches, ranking, reading and assembly."""
