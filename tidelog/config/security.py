"""The settings of a node that say who may connect, how, and what they have to prove.

Rule: a secret is in a file that a setting names, never in a setting.
"""

from dataclasses import dataclass
from typing import Final

from tidelog.config.listeners import (
    ADVERTISED,
    LISTENER,
    MECHANISMS,
    PLAINTEXT,
    PROTOCOLS,
    Listener,
    parse_listeners,
)
from tidelog.config.setting import setting, split_list
from tidelog.errors import ConfigError
from tidelog.model import Endpoint, is_loopback

ANYBODY: Final = "anybody-may-read-and-write"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """Listeners, certificates and proofs."""

    kafka: str = setting("127.0.0.1:9092", "HOST:PORT that Kafka clients connect to.")
    kafka_advertised: str = setting("", "HOST:PORT that clients are told to use, if it differs from `kafka`.")
    kafka_security_protocol: str = setting(
        PLAINTEXT,
        "What clients at `kafka` speak: TLS with SSL and SASL_SSL; a proof of who they are with "
        "SASL_PLAINTEXT and SASL_SSL.",
        choices=PROTOCOLS,
    )
    kafka_listeners: str = setting(
        "",
        "Further listeners, as NAME=PROTOCOL://HOST:PORT,... with the protocols of "
        "`kafka.security.protocol`. Clients are told the addresses of the listener that they came to.",
        is_list=True,
        pattern=LISTENER,
        form="listeners as outside=SASL_SSL://0.0.0.0:9094",
    )
    kafka_listeners_advertised: str = setting(
        "",
        "NAME=HOST:PORT,... that clients of `kafka.listeners` are told to use, where that differs.",
        is_list=True,
        pattern=ADVERTISED,
        form="addresses as outside=broker1.example.com:9094",
    )
    http: str = setting(
        "127.0.0.1:8080",
        "HOST:PORT that HTTP clients connect to; empty turns HTTP off. If the port is in use and this "
        "setting is the default, the node starts without HTTP.",
    )
    http_security_protocol: str = setting(
        PLAINTEXT,
        "What clients at `http` speak: TLS with SSL and SASL_SSL. With SASL_PLAINTEXT and SASL_SSL every "
        "request must say who asks, by a user and a password or a token.",
        choices=PROTOCOLS,
    )
    http_allowed_hosts: str = setting(
        "",
        "Names, beside its own, that HTTP clients may call this node by; `*` for any. Addresses and names "
        "without a domain need not be named. Others are refused, as a page may have made them point here.",
        is_list=True,
        pattern=r"\*|[A-Za-z0-9.-]{1,253}",
        form="names as tidelog.example.com, or *",
    )
    sasl_enabled_mechanisms: str = setting(
        "SCRAM-SHA-256,SCRAM-SHA-512",
        "How clients may prove who they are. PLAIN sends the password itself, OAUTHBEARER a token of "
        "`tidelog tokens`: offer them over TLS only.",
        choices=MECHANISMS,
        is_list=True,
    )
    connections_max_reauth_ms: int = setting(
        0, "For how long a proof by SASL lasts; then it must be repeated. 0: as the connection.", least=0
    )
    ssl_keystore_location: str = setting(
        "", "PEM file with the node's certificate, and those between it and the authority."
    )
    ssl_keystore_key: str = setting(
        "", "PEM file with the private key, not encrypted; empty if it is in `ssl.keystore.location`."
    )
    ssl_truststore_location: str = setting(
        "", "PEM file with the authorities that sign the certificates of clients."
    )
    ssl_client_auth: str = setting(
        "none",
        "Whether clients at listeners with TLS show a certificate: `none`, `requested` or `required`.",
        choices=("none", "requested", "required"),
    )
    ssl_principal_mapping_rules: str = setting(
        "DEFAULT",
        "Who the owner of a certificate is: RULE:PATTERN/REPLACEMENT/[L|U],...,DEFAULT as in Kafka. DEFAULT "
        "is the whole name, as CN=alice,O=example.",
    )
    unauthenticated_beyond_loopback: str = setting(
        "",
        f"`{ANYBODY}` lets listeners without proof be reached from other machines. Whoever reaches them "
        "owns the cluster.",
        choices=("", ANYBODY),
    )

    @property
    def kafka_endpoint(self) -> Endpoint:
        return Endpoint.parse(self.kafka)

    @property
    def listeners(self) -> list[Listener]:
        """Where Kafka clients connect; the one of `kafka` comes first."""
        advertised = Endpoint.parse(self.kafka_advertised) if self.kafka_advertised else None
        first = Listener(
            name="", protocol=self.kafka_security_protocol, at=self.kafka_endpoint, advertised=advertised
        )
        further = split_list(self.kafka_listeners), split_list(self.kafka_listeners_advertised)
        return [first, *parse_listeners(*further)]

    @property
    def http_has_tls(self) -> bool:
        return self.http_security_protocol.endswith("SSL")

    @property
    def has_tls(self) -> bool:
        """Whether anything is served over TLS."""
        return self.http_has_tls or any(one.has_tls for one in self.listeners)

    @property
    def open_peer(self) -> Endpoint | None:
        """Where whoever comes from another machine is taken for a node; a node without peers has none."""
        return None

    @property
    def open_doors(self) -> list[str]:
        """Where whoever comes from another machine need not prove anything."""
        certified = self.ssl_client_auth == "required"
        doors = [
            f"kafka{f'.listeners ({one.name})' if one.name else ''} {one.at}"
            for one in self.listeners
            if not (one.has_sasl or (one.has_tls and certified)) and not is_loopback(one.at.host)
        ]
        if self.http:
            at = Endpoint.parse(self.http)
            is_proved = self.http_security_protocol.startswith("SASL_") or (self.http_has_tls and certified)
            if not (is_proved or is_loopback(at.host)):
                doors.append(f"http {at}")
        if self.open_peer is not None:
            doors.append(f"peer {self.open_peer}")
        return doors

    def check_doors(self) -> None:
        """ConfigError if anybody could come in from another machine, and nobody has asked for that."""
        if self.open_doors and self.unauthenticated_beyond_loopback != ANYBODY:
            raise ConfigError(
                f"anybody who reaches {' or '.join(self.open_doors)} could read, write and delete "
                "everything; let clients prove who they are (kafka.security.protocol, "
                "http.security.protocol) and nodes that they are nodes (cluster.secret.file), or set "
                f"unauthenticated.beyond.loopback={ANYBODY}"
            )

    def check_security(self) -> None:
        """ConfigError for what cannot be together."""
        if self.has_tls and not self.ssl_keystore_location:
            raise ConfigError("ssl.keystore.location must name the node's certificate, as there is TLS")
        if self.ssl_client_auth != "none" and not self.ssl_truststore_location:
            raise ConfigError(
                f"ssl.truststore.location must name who signs clients' certificates: "
                f"ssl.client.auth is {self.ssl_client_auth}"
            )
