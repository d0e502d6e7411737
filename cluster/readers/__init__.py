"""Readers on a cluster: store, warm, list and measure them."""
