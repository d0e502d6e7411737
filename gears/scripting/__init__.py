"""What a script sees: the builder, the API and `redisAI`."""
