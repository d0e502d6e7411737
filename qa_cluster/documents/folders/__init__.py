"""Decides which files of a folder are read: hidden and generated files, patterns, `.gitignore`, and files that git
tracks.
"""
