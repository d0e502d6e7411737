"""Models and TorchScripts: they are loaded here, wait in the queue of their device, and run in batches and graphs."""
