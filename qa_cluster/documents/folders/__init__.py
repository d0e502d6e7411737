"""Decides which files of a folder are read.

Hidden and generated files, the user's patterns, `.gitignore` files, and the files that git tracks decide.
"""
