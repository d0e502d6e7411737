"""This room measures the answers to a question set: it asks, scores, and makes the tables of `qa-cluster eval`."""
