"""This room is the interface for scripts: the builder, the API and `redisAI`. The module `runtime` has the parts of the
worker that scripts use.
"""
