"""This room is the interface for scripts: the builder, the API and `redisAI`. `runtime` gives access to the worker's
parts.
"""
