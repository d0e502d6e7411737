"""Ranks sentences for a question: terms, fields, index weights, filters, and BM25 over all partitions."""
