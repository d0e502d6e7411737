"""Extracts clean text from RST, HTML, manual pages, PDF and other document formats."""
