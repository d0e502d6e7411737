"""Trains encoders: the vector of a question moves to the vector of the passage that answers it."""
