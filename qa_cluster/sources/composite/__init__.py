"""Reads files that consist of parts: Office files, e-books, notebooks and e-mail.

Each file is converted to one HTML tree.
"""
