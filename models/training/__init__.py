"""Fine-tuning of extractive question-answering checkpoints in plain PyTorch (the extra `train`)."""
