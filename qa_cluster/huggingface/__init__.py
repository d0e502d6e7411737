"""The question-answering pipeline that transformers removed: inputs, parameters and answers, locally and on shards."""
