"""The question-answering pipeline that transformers removed: its inputs, parameters and answers, here and on shards."""
