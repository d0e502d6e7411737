"""`qa-cluster eval`: asks the questions of a question set, scores the answers, and prints tables."""
