"""Extracts text from files in a separate process with limits of time and memory."""
