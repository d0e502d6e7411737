"""Batches of requests in files, with the interface of OpenAI's batches: their records and files in the cluster."""
