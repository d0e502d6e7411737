"""Reads manual pages: the roff language, and the macros of man(7), mdoc(7) and tbl(1)."""
