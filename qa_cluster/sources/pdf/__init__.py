"""Reads PDF: pypdf opens the file, and the positions and fonts of its text show lines, sections and tables."""
