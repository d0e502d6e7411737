"""Decides which files of a folder are read.

A file may be left out because it is hidden or generated, because of a pattern of the user or of a `.gitignore` file,
or because git does not track it.
"""
