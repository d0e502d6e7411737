"""Defines a reader and how it reads: manifest, runtimes, tokenization, pairs, windows, spans, context."""
