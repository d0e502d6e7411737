"""This room holds the runtimes that run models, behind one interface: OpenVINO, ONNX Runtime and torch."""
