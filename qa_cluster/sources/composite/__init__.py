"""Reads files that consist of parts: Office files, e-books, notebooks and e-mail. Each becomes one tree of HTML."""
