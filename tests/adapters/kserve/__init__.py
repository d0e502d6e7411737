"""The Open Inference Protocol of the REST service with the clients of Triton and KServe."""
