"""ONNX files of other precisions, with as little loss as can be."""
