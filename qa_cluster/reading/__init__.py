"""Readers and how they read: manifest, plan, runtimes, tokens, pairs and windows, spans, passages."""
