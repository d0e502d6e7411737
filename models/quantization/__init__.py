"""Converts ONNX files to other precisions with little loss."""
