"""Trains encoders: the vector of a question moves towards the vector of the passage that answers it."""
