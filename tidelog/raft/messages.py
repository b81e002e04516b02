"""What the members of a quorum say to each other, and what a machine takes and returns.

Rule 1: a request is answered once, or never; a lost answer means nothing.
Rule 2: every message carries its sender's epoch. A greater one is news; a smaller one is refused
        with the epoch that has passed it.
Rule 3: an effect is performed in the order given. `Persist` and `Truncate` are finished before
        anything that follows them, and before the next event.
Rule 4: whoever names a leader says where that is, if it knows: whoever hears it may have no set of
        voters with that node in it.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import msgspec

from tidelog.model import NO_EPOCH, Endpoint, Epoch, NodeId, Offset
from tidelog.raft.voters import ReplicaKey, Voter, VoterSet


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Travels between peers; the tag is the class's name."""


class SnapshotId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A snapshot holds everything below `end`; the last record in it is of `epoch`."""

    end: Offset
    epoch: Epoch


class Position(NamedTuple):
    """How far a log goes: its end, and the epoch of the record before it. Logs compare by it."""

    epoch: Epoch
    end: Offset


NOWHERE: Final = Position(NO_EPOCH, 0)


# Requests.


class Vote(_Message, frozen=True, tag=True):
    """May I lead `epoch`? With `pre`: would you say yes? (KIP-996)"""

    epoch: Epoch
    candidate: ReplicaKey
    voter: ReplicaKey
    """Whom this is meant for: another disk in the same node must not answer."""
    last_epoch: Epoch
    end: Offset
    pre: bool


class BeginEpoch(_Message, frozen=True, tag=True):
    """I lead `epoch`: fetch from me."""

    epoch: Epoch
    leader: Voter


class EndEpoch(_Message, frozen=True, tag=True):
    """I lead `epoch` no longer; the first of `successors` may campaign at once."""

    epoch: Epoch
    leader: NodeId
    successors: tuple[NodeId, ...] = ()


class Fetch(_Message, frozen=True, tag=True):
    """Give me what follows `offset`; all below `synced_end` is durable here.

    Only `synced_end` counts as a promise; where somebody reads says nothing.
    """

    epoch: Epoch
    replica: ReplicaKey
    offset: Offset
    last_epoch: Epoch
    """Of the record before `offset`; NO_EPOCH if there is none."""
    synced_end: Offset
    high_watermark: Offset
    """The highest that the sender knows; the answer waits until there is more than that."""


class FetchSnapshot(_Message, frozen=True, tag=True):
    """Give me a piece of the snapshot, from `position`. Answered by the driver."""

    epoch: Epoch
    replica: ReplicaKey
    snapshot: SnapshotId
    position: int


# Answers.


class _Answer(_Message, frozen=True, kw_only=True):
    epoch: Epoch
    leader: NodeId
    """Who leads `epoch`, as far as the answering node knows; NO_NODE if it does not."""
    endpoint: Endpoint | None = None
    """Where `leader` is; None if the answering node does not know, or does not say so."""


class VoteAnswer(_Answer, frozen=True, tag=True):
    granted: bool
    pre: bool


class EpochAnswer(_Answer, frozen=True, tag=True):
    """To BeginEpoch and EndEpoch: the epoch that I know."""


class FetchAnswer(_Answer, frozen=True, tag=True):
    """What a leader has for a follower; at most one of the last three is set."""

    accepted: bool = True
    """False if the answering node does not lead the epoch asked for: ask `leader`, if it names one.
    What follows counts only if it is True."""
    high_watermark: Offset = 0
    diverging: tuple[Epoch, Offset] | None = None
    """Our histories part: of this epoch, and none after it, you may keep all below this offset."""
    snapshot: SnapshotId | None = None
    """What you ask for is gone; begin with this snapshot."""
    offset: Offset = 0
    data: bytes = b""
    """Whole batches from `offset`; put there by the driver."""


class SnapshotPiece(_Message, frozen=True, tag=True):
    epoch: Epoch
    size: int
    """Of the whole snapshot; 0 if it is not here (any more)."""
    position: int
    data: bytes = b""


Request: TypeAlias = Vote | BeginEpoch | EndEpoch | Fetch
Answer: TypeAlias = VoteAnswer | EpochAnswer | FetchAnswer


# What a node must not forget.


class ElectionState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Written durably before anything is said that depends on it."""

    epoch: Epoch = 0
    voted: ReplicaKey | None = None
    """For whom this node voted in `epoch`."""
    leader: NodeId | None = None
    """Who leads `epoch`, if this node knows."""


# Events.


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; the machine looks at its deadlines. Comes when `machine.deadline` does."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request came in. `token` names it in the `Reply` that answers it, now or later."""

    source: NodeId
    request: Request
    token: int


@dataclass(frozen=True, slots=True)
class Gone:
    """Whoever asked `token` does not wait any more."""

    token: int


@dataclass(frozen=True, slots=True)
class Answered:
    source: NodeId
    request: Request
    answer: Answer


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A request failed or took too long. `is_down`: nobody listens there; the process is gone."""

    destination: NodeId
    request: Request
    is_down: bool = False


@dataclass(frozen=True, slots=True)
class Appended:
    """The log has grown to `end`: by what this leader wrote, or by what this follower was sent."""

    end: Offset
    epoch: Epoch
    start: Offset
    """Where the batches of `epoch` among them begin."""


@dataclass(frozen=True, slots=True)
class Synced:
    """Everything below `end` is durable here, and it is noted durably that others may hear so."""

    end: Offset


@dataclass(frozen=True, slots=True)
class VotersFound:
    """A record at `offset` of the log says who votes; it counts at once, committed or not."""

    offset: Offset
    voters: VoterSet


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A snapshot of what is committed was made, and the log now begins at `log_start`."""

    snapshot: SnapshotId
    log_start: Offset


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """The leader's snapshot is here and durable; the log is empty and continues at its end."""

    snapshot: SnapshotId
    voters: VoterSet


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """The snapshot could not be fetched; ask the leader again."""


@dataclass(frozen=True, slots=True)
class Resign:
    """Give leadership up: the node is stopping, or its operator says so."""


Event: TypeAlias = (
    Ticked
    | Asked
    | Gone
    | Answered
    | Unanswered
    | Appended
    | Synced
    | VotersFound
    | SnapshotTaken
    | SnapshotInstalled
    | SnapshotFailed
    | Resign
)


# Effects.


@dataclass(frozen=True, slots=True)
class Persist:
    """Write `state` durably before doing anything that follows."""

    state: ElectionState


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request; its fate comes back as `Answered` or `Unanswered`."""

    to: NodeId
    request: Request


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a request. The driver adds the data that a FetchAnswer's `offset` promises."""

    token: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Append:
    """Append the batches that the leader sent; `Appended` and `Synced` come back."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """Remove everything from `end` on, durably, before doing anything that follows."""

    end: Offset


@dataclass(frozen=True, slots=True)
class GetSnapshot:
    """Fetch this snapshot from `leader`; `SnapshotInstalled` or `SnapshotFailed` comes back."""

    leader: NodeId
    epoch: Epoch
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class Lead:
    """This node leads `epoch` now: append its first record, which names the voters."""

    epoch: Epoch
    voters: VoterSet


@dataclass(frozen=True, slots=True)
class Follow:
    """Somebody else leads, or nobody does; this node leads no longer, if it did."""

    epoch: Epoch
    leader: NodeId | None


@dataclass(frozen=True, slots=True)
class Commit:
    """Everything below `high_watermark` is decided for ever."""

    high_watermark: Offset


Effect: TypeAlias = Persist | Send | Reply | Append | Truncate | GetSnapshot | Lead | Follow | Commit
