"""Processes that load and run models for the worker of the shard.

*Inference workers* (`qa.inference-workers`) run readers and encoders. *Model processes* (`qa.model-processes`) run all
other models and TorchScripts.
"""
