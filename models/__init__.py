"""Offline work on models: training, export, quantization, calibration, evaluation; and the bundled default reader."""
