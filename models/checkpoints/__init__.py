"""Fetches and loads Hugging Face checkpoints, and learns how their tokenizers join pairs."""
