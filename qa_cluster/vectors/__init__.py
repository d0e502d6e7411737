"""Vectors of passages and questions: the encoder's manifest, the cut of documents into passages, and packed vectors.

The worker computes vectors (`gears/functions/embedding`). The index of a partition stores and compares them.
"""
