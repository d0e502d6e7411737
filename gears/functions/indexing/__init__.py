"""This room makes sentences, tokens and postings of a stored document."""
