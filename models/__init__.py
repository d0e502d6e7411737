"""Trains, exports, quantizes, calibrates and evaluates models, outside of a cluster; has the bundled models."""
