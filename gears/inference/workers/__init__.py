"""Inference workers (`qa.inference-workers`): processes that hold and run models for the shard's worker."""
