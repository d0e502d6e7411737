"""This room loads models and TorchScripts, queues their requests by device, and runs the requests in batches and
graphs."""
