"""Requests meet partitions: one module per family of APIs, and the broker that they share."""
