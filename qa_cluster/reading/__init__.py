"""Readers and how they read: manifests, plans, runtimes, tokens, windows, spans and passages."""
