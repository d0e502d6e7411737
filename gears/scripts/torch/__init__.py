"""This room runs TorchScripts and graphs of models and scripts, for `redisAI` and the `AI.*` commands."""
