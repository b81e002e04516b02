"""What can be wrong between records and their schemas; every message says what to do."""

from tidelog.errors import TidelogError


class SchemaProblem(TidelogError):
    """A record, a schema and the registry do not agree."""


class RegistryDown(SchemaProblem):
    """The registry does not answer; ask again, or check schema.registry.url."""


class RegistryRefused(SchemaProblem):
    """The registry refused: unknown id or subject, bad credentials, an incompatible schema."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class DoesNotFit(SchemaProblem):
    """A value that its schema cannot say, or bytes that are no such value."""


class NotFramed(DoesNotFit):
    """A record that does not begin with the id of a schema: nobody can say what it is."""


def missing(package: str, what: str) -> SchemaProblem:
    return SchemaProblem(f"{what} needs {package}: pip install 'tidelog[schemas]'")
