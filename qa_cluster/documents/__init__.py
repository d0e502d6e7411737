"""Reads documents from users' files and splits their texts into sentences.

This folder also builds the commands that store documents on the shards.
"""
