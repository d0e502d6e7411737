"""Reads documents from users' files, splits them into sentences, and builds the commands that store them on the
shards.
"""
