"""Tests of `integrations/langchain/` against a running service."""
