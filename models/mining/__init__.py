"""Mines hard negatives: passages that rank high for a question and do not answer it."""
