"""This room sets a cluster up to answer questions, and makes it larger."""
