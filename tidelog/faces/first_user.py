"""The first user of a cluster: without it nobody could prove who they are, and so nobody could add a user.

Rule 1: it is added where the cluster has no user at all. Once there is one, the file changes nothing.
Rule 2: a node serves while it tries: a quorum that is not there yet keeps nobody waiting but the user.
"""

import asyncio
import logging
from typing import Final

from tidelog.broker.broker import Broker
from tidelog.controller import users
from tidelog.controller.image import ClusterImage
from tidelog.controller.records import MetadataRecord
from tidelog.errors import BrokerError
from tidelog.operators.users import make_verifiers, new_secret

_log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0


def parse_first_user(text: str) -> tuple[str, str]:
    """Read `NAME:PASSWORD`; ValueError, which does not tell the password, says what is wrong."""
    name, colon, password = text.strip("\r\n").partition(":")
    if not colon or not password or "\n" in password:
        raise ValueError("it must hold one line, NAME:PASSWORD")
    try:
        users.check_name(name)
        users.check_password(password)
    except BrokerError as error:
        raise ValueError(str(error)) from None
    return name, password


async def add_first_user(broker: Broker, name: str, password: str) -> None:
    """Add the user, unless the cluster has one."""
    while True:
        try:
            await broker.metadata.caught_up()
            if not broker.image.users:
                await _add(broker, name, password)
            return
        except BrokerError as error:
            _log.debug("the first user is not added yet: %s", error)
            await asyncio.sleep(RETRY_SECONDS)


async def _add(broker: Broker, name: str, password: str) -> None:
    secret, verifiers = new_secret(broker.host), await make_verifiers(broker.host, password)

    def decide(image: ClusterImage) -> list[MetadataRecord]:
        if image.users:
            return []  # another node was faster
        return users.change_user(image, name, verifiers, secret=secret)

    if await broker.metadata.change(decide):
        _log.info("the cluster had no users; added %r, as first.user.file says", name)
