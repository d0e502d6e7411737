"""Exports a checkpoint as the files of a reader, with a report."""
