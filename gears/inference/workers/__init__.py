"""Inference workers (`qa.inference-workers`): processes that load and run models for the worker of the shard."""
