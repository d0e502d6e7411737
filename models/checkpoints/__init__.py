"""Checkpoints of Hugging Face: fetched, loaded, and how their tokenizers join pairs."""
