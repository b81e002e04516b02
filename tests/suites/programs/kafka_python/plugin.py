"""The `conftest.py` above kafka-python's tests: it skips those that cannot apply."""

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if "test_ssl_integration" in item.nodeid:
            # Unlike the SASL tests they do not look at KAFKA_URI, and start a Java broker.
            item.add_marker(pytest.mark.skip(reason="starts a broker of its own, with TLS"))
