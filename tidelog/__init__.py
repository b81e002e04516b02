"""Tidelog: a replicated message log that Kafka clients and PySpark speak to unchanged.

PYTEST_DONT_REWRITE: there is a plugin for pytest in here, and pytest would warn whoever imports
Tidelog before it.
"""

__version__ = "0.1.0"
