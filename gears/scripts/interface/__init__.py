"""This room is what scripts use: the builder, the API and `redisAI`, which find the worker's parts by its runtime."""
