"""Ranking and reading: from a question to answers."""
