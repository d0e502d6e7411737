"""Tests of `integrations/llama_index/` against a running service."""
