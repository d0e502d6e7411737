"""This room loads models and TorchScripts, queues requests to them by device, and runs them in batches and graphs."""
