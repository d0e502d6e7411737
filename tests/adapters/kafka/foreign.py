"""Clients that share no code with librdkafka. Importing kafka-python uses a function that Python has deprecated."""

import warnings

from aiokafka import AIOKafkaConsumer

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer

__all__ = ["AIOKafkaConsumer", "KafkaConsumer"]
