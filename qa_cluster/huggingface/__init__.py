"""The question-answering pipeline that transformers removed: inputs, parameters and answers, local and on shards."""
