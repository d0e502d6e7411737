"""Mines what a reader meets in use: passages that rank high for a question and do not answer it."""
