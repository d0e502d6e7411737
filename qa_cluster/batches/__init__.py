"""Batches of requests in files, as OpenAI's interface has them: their records in the cluster and their files."""
