"""Fetches and loads Hugging Face checkpoints, and finds out how their tokenizers join a question and a context."""
