"""Fetching: how a copy of the log follows its leader.

Rule 1: at most one fetch is under way, and none while batches are on their way to the disk: a
        fetch always asks from where the log ends.
Rule 2: the next fetch leaves once what the last one brought is synced, because only a fetch tells
        the leader what is durable here. A slow disk does not silence the follower: after
        `fetch_wait` it fetches anyway, and promises no more than it holds.
Rule 3: only an accepted answer to the fetch under way is a sign of the leader's life.
Rule 4: where the leader is, the leader itself knows best: what it says takes the place of what was
        heard from who named it.
Rule 5: what is committed is never given up, whatever a leader says.
"""

from tidelog.model import Endpoint, NodeId, Offset
from tidelog.raft.messages import Append, Effect, Fetch, FetchAnswer, GetSnapshot, Send, SnapshotId
from tidelog.raft.state import NEVER, RaftMember


class Following:
    """Fetches from one leader, in one epoch."""

    __slots__ = (
        "_failures",
        "_fetch",
        "_fetch_at",
        "_learned",
        "_member",
        "_sent_at",
        "complaint",
        "endpoint",
        "heard_at",
        "leader",
        "lost_at",
    )

    def __init__(
        self,
        member: RaftMember,
        *,
        leader: NodeId,
        now: float,
        endpoint: Endpoint | None = None,
        heard_at: float | None = None,
    ) -> None:
        self._member = member
        self.leader = leader
        self.endpoint = endpoint
        """Where the leader is, as it or who named it said; None if nobody said so."""
        self.heard_at = heard_at
        """When the leader itself last gave a sign of life."""
        self.lost_at = now + self._patience()
        """When this node gives the leader up."""
        self.complaint: str | None = None
        """What the leader asked for and must not get."""
        self._fetch: Fetch | None = None
        self._fetch_at = now
        self._sent_at = now
        self._failures = 0
        self._learned: Offset = member.log.high_watermark
        """The leader's watermark, of which this log may not hold everything yet."""

    def __repr__(self) -> str:
        return f"<Following {self.leader} fetching={self._fetch is not None}>"

    def _patience(self) -> float:
        """The fetch timeout, and a little more, so that not all followers campaign at once."""
        timing = self._member.timing
        return timing.fetch_timeout + self._member.draw() * timing.failover_jitter

    @property
    def deadline(self) -> float:
        if self._member.log.is_appending:
            return NEVER  # it is our own disk that keeps us from asking
        if self._fetch is not None:
            return self.lost_at
        return min(self.lost_at, self._fetch_at)

    def has_lost(self, now: float) -> bool:
        return self.lost_at <= now and not self._member.log.is_appending

    def is_led(self, now: float) -> bool:
        """Whether the leader has given a sign of life within the fetch timeout."""
        return self.heard_at is not None and now - self.heard_at < self._member.timing.fetch_timeout

    def is_waiting_for(self, source: NodeId, request: Fetch) -> bool:
        return source == self.leader and request == self._fetch

    def fetch(self, now: float) -> list[Effect]:
        """Send the next fetch if its time has come."""
        if self._fetch is not None or self._fetch_at > now or self._member.log.is_appending:
            return []
        self._fetch = next_fetch(self._member)
        self._sent_at = now
        return [Send(self.leader, self._fetch)]

    def appended(self, now: float) -> list[Effect]:
        """What the last fetch brought is in the log; `synced` makes the next one leave."""
        self.lost_at = max(self.lost_at, now + self._patience())
        return self._member.log.commit(self._learned)

    def synced(self, now: float) -> None:
        log = self._member.log
        if self._failures == 0 and log.synced_end >= log.end:
            self._fetch_at = min(self._fetch_at, now)

    def installed(self, now: float) -> None:
        """A snapshot is here, or cannot be had: ask on from where the log now ends."""
        self._fetch = None  # it spoke of a log that is gone
        self._fetch_at = now

    def unanswered(self, now: float) -> None:
        self._fetch = None
        self._try_later(now)

    def _try_later(self, now: float) -> None:
        self._fetch_at = now + self._member.backoff(self._failures)
        self._failures += 1

    def answered(self, answer: FetchAnswer, now: float) -> list[Effect]:
        """Take the leader's answer to the fetch under way."""
        fetch, self._fetch = self._fetch, None
        assert fetch is not None
        log = self._member.log
        self.heard_at = now
        self.endpoint = answer.endpoint or self.endpoint
        self.lost_at = now + self._patience()
        if log.is_installing:  # this fetch was a sign of life, no more
            self._fetch_at = now + self._member.timing.fetch_wait
            return []
        if fetch.offset != log.end or fetch.last_epoch != log.last_epoch:
            self._fetch_at = now  # it speaks of a log that is gone
            return []
        if answer.snapshot is not None:
            return self._install(answer.snapshot, now)
        if answer.diverging is not None:
            return self._truncate(*answer.diverging, now)
        return self._take(answer, now)

    def _take(self, answer: FetchAnswer, now: float) -> list[Effect]:
        log = self._member.log
        self._failures = 0
        self._learned = max(self._learned, answer.high_watermark)
        # The leader's history agrees with this log: below its end the two are the same.
        effects = log.commit(answer.high_watermark)
        if not answer.data and answer.offset == log.end:
            log.caught_up()
        if answer.data and answer.offset == log.end:
            log.is_appending = True
            self._fetch_at = now + self._member.timing.fetch_wait
            effects.append(Append(answer.data))
        elif effects:
            self._fetch_at = now
        else:
            # Nothing new: a leader that does not wait for news must not be asked in a tight loop.
            self._fetch_at = max(now, self._sent_at + self._member.timing.retry_min)
        return effects

    def _truncate(self, epoch: int, end: Offset, now: float) -> list[Effect]:
        log = self._member.log
        end = min(end, log.end_of(epoch)[1])
        if end < log.high_watermark:
            self.complaint = (
                f"leader {self.leader} of epoch {self._member.epoch} wants this log to end at "
                f"{end}, but everything below {log.high_watermark} is committed"
            )
            self._try_later(now)
            return []
        if end >= log.end:
            self._try_later(now)  # that changes nothing, so asking again would not either
            return []
        self._failures = 0
        self._learned = log.high_watermark
        self._fetch_at = now
        return log.truncate(end)

    def _install(self, snapshot: SnapshotId, now: float) -> list[Effect]:
        log = self._member.log
        if snapshot.end <= log.high_watermark or snapshot.epoch > self._member.epoch:
            self.complaint = (
                f"leader {self.leader} of epoch {self._member.epoch} offers a snapshot that ends "
                f"at {snapshot.end}, but {log.high_watermark} is committed here"
            )
            self._try_later(now)
            return []
        log.is_installing = True
        self._fetch_at = now + self._member.timing.fetch_wait
        return [GetSnapshot(self.leader, self._member.epoch, snapshot)]


def next_fetch(member: RaftMember) -> Fetch:
    log = member.log
    return Fetch(
        epoch=member.epoch,
        replica=member.key,
        offset=log.end,
        last_epoch=log.last_epoch,
        synced_end=log.synced_end,
        high_watermark=log.high_watermark,
    )
