"""`test.service`, which kafka-python's tests import but its source distribution leaves out.

Only a broker that runs already is served: `ExternalService`, as its fixtures call it.
"""


class ExternalService:
    """A broker that somebody else started."""

    def __init__(self, host, port):
        self.host = host
        self.port = port

    def open(self):
        pass

    def close(self):
        pass

    def stop(self):
        pass

    def dump_logs(self):
        pass


class SpawnedService:
    """A broker that the tests would start: there is none to start here."""

    def __init__(self, *arguments, **options):
        raise RuntimeError("these tests need a broker of their own with TLS or SASL")
