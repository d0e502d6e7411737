"""The parts of HTTP that all routes share: messages, problem documents, and the header fields of limits."""
