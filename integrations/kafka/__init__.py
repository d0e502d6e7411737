"""Kafka: answers questions from a topic, and stores the documents of a topic (`qa-cluster kafka`)."""
