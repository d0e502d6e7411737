"""Measures the quality of answers without a cluster: question sets, figures with intervals, calibration."""
