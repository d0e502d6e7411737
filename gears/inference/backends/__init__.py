"""The runtimes that run models, behind one interface: OpenVINO, ONNX Runtime and torch."""
