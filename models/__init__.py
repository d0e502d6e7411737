"""Offline model work: export, quantization, calibration, evaluation; and the bundled default reader."""
