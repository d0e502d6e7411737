"""Measures how good answers are: question sets, figures with intervals, calibration. It needs no cluster."""
