"""The messages of the Open Inference Protocol (KServe v2), in JSON and in Triton's binary form."""
