"""This room has the parts of HTTP that all routes share: messages, problem documents, the fields of limits."""
