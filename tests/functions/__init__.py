"""Scripts and own functions on real servers."""
