"""Vectors of passages and questions: the encoder's manifest, the cut of documents into passages, packed vectors.

The worker makes vectors (`gears/functions/embedding`), and the index of a partition stores and compares them.
"""
