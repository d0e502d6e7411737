"""This room makes sentences, tokens and postings from a stored document."""
