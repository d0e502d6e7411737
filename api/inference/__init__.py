"""The messages of the Open Inference Protocol (KServe v2), as JSON and in Triton's binary form."""
