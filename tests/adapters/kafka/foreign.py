"""Kafka clients other than librdkafka. The import of kafka-python uses a deprecated function of Python."""

import warnings

from aiokafka import AIOKafkaConsumer

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer

__all__ = ["AIOKafkaConsumer", "KafkaConsumer"]
