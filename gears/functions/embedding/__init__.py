"""This room makes vectors: of questions when they are asked, and of the passages of documents in the background."""
