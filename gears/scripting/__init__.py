"""What a script sees: the builder, the API, `redisAI`, and the one place where all of them find the worker's parts."""
