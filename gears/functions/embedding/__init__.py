"""This room computes vectors: of questions when they are asked, and of documents' passages in the background."""
