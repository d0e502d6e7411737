"""Measures readers: scores, calibration, thresholds, time, and a baseline to compare with."""
