"""Tests of the Open Inference Protocol with the clients of Triton and KServe."""
