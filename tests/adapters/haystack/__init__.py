"""Tests of `integrations/haystack/` against a running service."""
