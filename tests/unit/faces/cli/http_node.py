"""A node that commands ask over HTTP, without a socket: it answers as it is told."""

from functools import partial
from typing import Any

import httpx
import pytest

from tests.unit.client.http.fleet import Answer, Asked, Fleet
from tidelog.client import Client

HTTP = "node:8080"


class HttpNode:
    """`node.says(path, answer)`; what it was asked is in `asked`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._fleet = Fleet(HTTP)
        client = partial(Client, transport=httpx.MockTransport(self._fleet.answer), sleep=lambda _: None)
        monkeypatch.setattr("tidelog.client.Client", client, raising=False)
        monkeypatch.setenv("TIDELOG_HTTP_BOOTSTRAP", HTTP)

    def says(self, path: str, *answers: Answer) -> None:
        self._fleet.says(path, *answers)

    @property
    def asked(self) -> list[Asked]:
        return [one for one in self._fleet.asked if one.path != "/v1/cluster"]

    @property
    def last(self) -> Asked:
        return self.asked[-1]

    def describes(self, topic: str, high_watermarks: list[Any]) -> None:
        """What `/v1/cluster` says of a topic."""
        partitions = [
            {"partition": number, "leader": 1, "high_watermark": mark}
            for number, mark in enumerate(high_watermarks)
        ]
        document = {"brokers": [], "topics": [{"name": topic, "partitions": partitions}]}
        self.says("/v1/cluster", httpx.Response(200, json=document))

    def goes_away(self) -> None:
        self._fleet.down.add(HTTP)
