"""Reads manual pages: the language of roff, and the macros of man(7), mdoc(7) and tbl(1)."""
