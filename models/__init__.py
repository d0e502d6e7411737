"""Offline model work: export, quantization, manifest, evaluation; and the bundled default reader."""
