"""Ranks sentences for a question: terms, fields, index weights, filters, BM25 over all partitions."""
