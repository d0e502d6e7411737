"""From a stored document to sentences, tokens and postings."""
