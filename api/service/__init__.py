"""This room holds what lives as long as the service: its options and engine, its metrics, whether it is ready."""
