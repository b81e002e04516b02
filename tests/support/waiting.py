"""A producer that waits for its records; the leader machine only hands it back."""

from dataclasses import dataclass

from tidelog.errors import BrokerError
from tidelog.model import Offset


@dataclass(eq=False)
class Waiting:
    end: Offset = 0
    deadline: float = float("inf")

    def settled(self, error: BrokerError | None) -> None:
        raise AssertionError("the machine tells nobody; its driver does")
