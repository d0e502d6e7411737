"""Reads PDF. pypdf opens the file; the positions and fonts of its text determine lines, sections and tables."""
