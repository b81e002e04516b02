"""TLS of a node's listeners: certificates from files, read again whenever they change.

Rule 1: connections that are open keep the certificates that they began with; new ones get the new.
Rule 2: files that cannot be read, or do not fit together, change nothing: the node goes on with what it
        has, and says so.
"""

import asyncio
import logging
import os
import ssl
from typing import Final

from tidelog.config import NodeConfig
from tidelog.errors import ConfigError
from tidelog.host import Host
from tidelog.security.certificates import PrincipalRules
from tidelog.security.principals import ANONYMOUS, Principal

_log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 5.0
"""How often it is seen whether the files have changed."""
_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class Certificates:
    """What a node shows its clients, and whose certificates it believes."""

    def __init__(self, host: Host, config: NodeConfig) -> None:
        """ConfigError if the files make no TLS."""
        self._host = host
        self._config = config
        self._rules = PrincipalRules(config.ssl_principal_mapping_rules)
        self._files = [
            path
            for path in (
                config.ssl_keystore_location,
                config.ssl_keystore_key,
                config.ssl_truststore_location,
            )
            if path
        ]
        self._seen = self._look()
        self._newest = _context(config)
        self._watching: asyncio.Task[None] | None = None
        self.context = self._newest
        """What listeners are made with. A connection takes the newest one when its client says hello."""
        self.context.sni_callback = self._on_hello

    def watch(self) -> None:
        """Read the files again when they change, from now on."""
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    def principal(self, transport: asyncio.BaseTransport) -> Principal:
        """Who has shown a certificate at the other end; ANONYMOUS if nobody has."""
        certificate = transport.get_extra_info("peercert")
        return self._rules.principal(certificate) if certificate else ANONYMOUS

    def _on_hello(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        if self._newest is not context:
            connection.context = self._newest

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Take the files as they are, if they have changed."""
        seen = await self._host.offload.run(self._look)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._newest = await self._host.offload.run(lambda: _context(self._config))
        except ConfigError as error:
            _log.error("the former certificates stay: %s", error)
        else:
            _log.info("took new certificates from %s", ", ".join(self._files))

    def _look(self) -> list[tuple[int, int, int]]:
        """What changes with the content of the files."""
        seen = []
        for path in self._files:
            try:
                status = os.stat(path)
            except OSError:
                seen.append((0, 0, 0))
            else:
                seen.append((status.st_mtime_ns, status.st_ino, status.st_size))
        return seen


def _context(config: NodeConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0  # a resumed session would be believed by certificates that are gone
    key = config.ssl_keystore_key or None
    try:
        context.load_cert_chain(config.ssl_keystore_location, key, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        files = " and ".join(filter(None, (config.ssl_keystore_location, key)))
        raise ConfigError(
            f"ssl.keystore.location: {files} holds no certificate with its key as PEM ({error})"
        ) from None
    context.verify_mode = _AUTH[config.ssl_client_auth]
    if config.ssl_truststore_location:
        try:
            context.load_verify_locations(config.ssl_truststore_location)
        except OSError as error:
            raise ConfigError(
                f"ssl.truststore.location: {config.ssl_truststore_location} holds no certificates as PEM "
                f"({error})"
            ) from None
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted; nobody is there to type its password")
