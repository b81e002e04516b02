"""What every write over HTTP takes: how safe it shall be, how long to wait, and by what it is known
again."""

from typing import Final, NamedTuple

from tidelog.broker.writing import once_of
from tidelog.faces.http.api import Call, Param
from tidelog.faces.http.problems import Problem
from tidelog.model import ProducerId

KEY_MAX: Final = 256

IDEMPOTENCY_KEY: Final = Param(
    name="idempotency-key",
    is_header=True,
    doc="Names this request: sent again with the same key, it gets the same answer and is not done "
    "twice. Up to 256 characters; remembered for `idempotency.window.ms`.",
)
IDEMPOTENCY_REPEAT: Final = Param(
    name="idempotency-repeat",
    kind=bool,
    default=False,
    is_header=True,
    doc="Whether an earlier attempt with this key may have arrived, or may arrive yet. Then even "
    "an answer of nothing is remembered through a failover.",
)
MIN_REPLICAS_ACK: Final = Param(
    name="min_replicas_ack",
    kind=int,
    least=0,
    most=100,
    doc="How many replicas beside the leader must hold it, too, before it is answered; 0: the "
    "leader alone is enough. By default what `http.min.replicas.ack` says, or else the topic "
    "demands, which this never weakens but by 0.",
)
SYNC_TIMEOUT_MS: Final = Param(
    name="sync_timeout_ms",
    kind=int,
    least=1,
    most=300_000,
    doc="How long to wait for that; then 504 says what is known. By default what "
    "`http.sync.timeout.ms` says: 30 s.",
)

WRITE_PARAMS: Final = (IDEMPOTENCY_KEY, MIN_REPLICAS_ACK, SYNC_TIMEOUT_MS)


class Wanted(NamedTuple):
    """How a write shall be done."""

    once: ProducerId
    copies: int | None
    seconds: float


def wanted_of(call: Call, scope: str = "") -> Wanted:
    """What a request with `WRITE_PARAMS` asks for; `scope` keeps equal keys of others apart."""
    key, copies = key_of(call), call[MIN_REPLICAS_ACK.name]
    config = call.broker.config
    if copies is None and config.http_min_replicas_ack >= 0:
        copies = config.http_min_replicas_ack
    return Wanted(
        once=once_of(None if key is None else f"{scope}\0{key}"), copies=copies, seconds=seconds_of(call)
    )


def key_of(call: Call) -> str | None:
    """The key by which a request is known when it comes again."""
    key: str | None = call[IDEMPOTENCY_KEY.name]
    if key is not None and not 0 < len(key) <= KEY_MAX:
        raise Problem(400, f"Idempotency-Key has 1 to {KEY_MAX} characters")
    return key


def seconds_of(call: Call) -> float:
    """How long a request may take that writes."""
    asked_ms: int | None = call.params.get(SYNC_TIMEOUT_MS.name)
    return (call.broker.config.http_sync_timeout_ms if asked_ms is None else asked_ms) / 1000
