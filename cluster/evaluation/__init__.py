"""How good the answers to a question set are: asking, judging, and the tables of `qa-cluster eval`."""
