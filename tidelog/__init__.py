"""Tidelog: a replicated message log that Kafka clients and PySpark speak to unchanged."""

__version__ = "0.1.0"
