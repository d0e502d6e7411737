"""What a reader is and how it reads: manifest, runtimes, tokenization, pairs, windows, spans, context."""
