"""This room loads models, queues their requests by device, and runs the requests in batches.

The scripts wing runs TorchScripts and graphs of models and scripts in the same queues.
"""
