"""This room answers questions: it reads sentences and given contexts."""
