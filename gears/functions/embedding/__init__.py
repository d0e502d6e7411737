"""This room computes vectors: for each question, and in the background for the passages of documents."""
