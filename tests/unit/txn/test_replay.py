"""Whatever happens, in whatever order, with writes that fail and nodes that die: what is live is
the fold of the log, nothing is decided twice, and everyone is answered.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.txn.desk import WAITS, WALL_MS, A, B, C, Desk
from tidelog.errors import StorageError
from tidelog.model import NO_PRODUCER
from tidelog.txn.events import Decided, Ended, GroupMember, Initialised
from tidelog.txn.limits import Limits
from tidelog.txn.records import DecisionWritten, State, TransactionRecord, TransactionWritten, decode, encode
from tidelog.txn.transitions import EPOCH_MAX

NAMES: Final = ["app", "spark.q.0", "spark.q.1"]
LIMITS: Final = Limits(timeout_max_ms=60_000, id_expiration_ms=300_000, waiting_max=3)
PLACES: Final = [A, B, C]
EMPTY, OPEN, PC, PA, CC, CA = State
LEGAL: Final[dict[State | None, set[State | None]]] = {
    None: {EMPTY},
    EMPTY: {EMPTY, OPEN, CA, None},
    OPEN: {OPEN, PC, PA},
    PC: {CC},
    PA: {CA},
    CC: {EMPTY, OPEN, CA, None},
    CA: {EMPTY, OPEN, CA, None},
}
BUILT_ON_A_FAILURE: Final[dict[State | None, set[State | None]]] = {PC: {OPEN}, PA: {OPEN}}
"""The completion failed, and what was built upon it did not."""


class Crowd:
    """Clients that do anything at any time, some of it sensible, and the world around them."""

    def __init__(self, *, fails: bool) -> None:
        # One of the ids has used up most of its epochs.
        old = TransactionRecord(
            producer_id=5, epoch=EPOCH_MAX - 4, timeout_ms=20_000, state=EMPTY, updated_ms=WALL_MS
        )
        written = TransactionWritten(transactional_id="app", value=old)
        self.desk = Desk(LIMITS, [encode(written, WALL_MS)])
        self.fails = fails
        self.known: dict[str, list[tuple[int, int]]] = {name: [(5, EPOCH_MAX - 4)] for name in NAMES}
        self.tokens: dict[str, tuple[str, bool]] = {}
        self.batch = 0
        self.answered_batch = -1
        self.folded: dict[str, object] = {}
        self.folded_to = 0

    def step(self, number: int) -> None:
        """Do what `number` says: the kind, then the details."""
        actions: list[Callable[[str, int], None]] = [
            self.init,
            self.add,
            self.add,
            self.end,
            self.end,
            self.store,
            self.store,
            self.store,
            self.mark,
            self.mark,
            self.group,
            self.wait,
            self.fail,
            self.restart,
            self.operate,
        ]
        number, kind = divmod(number, len(actions))
        number, which = divmod(number, len(NAMES))
        actions[kind](NAMES[which], number)
        self.look()

    def who(self, name: str, number: int) -> tuple[int, int]:
        known = self.known[name]
        return known[-2] if number % 8 == 7 and len(known) > 1 else known[-1]

    def init(self, name: str, number: int) -> None:
        fields = {}
        if number % 3 == 0 and len(self.known[name]) > 1:
            fields = dict(zip(("producer_id", "epoch"), self.who(name, number // 3), strict=True))
        self.tokens[self.desk.init(name, timeout_ms=20_000, **fields)] = name, False

    def add(self, name: str, number: int) -> None:
        number, kind = divmod(number, 5)
        number, many = divmod(number, 3)
        fields = {"implicit": kind in (2, 3), "verify_only": kind == 4}
        self.desk.add(name, self.who(name, number), *PLACES[: many + 1], **fields)

    def end(self, name: str, number: int) -> None:
        number, commits = divmod(number, 2)
        number, bumps = divmod(number, 2)
        needs_id = self.desk.shard.needs_fresh_id(name)
        token = self.desk.end(
            name,
            self.who(name, number),
            commits=bool(commits),
            bumps=bool(bumps),
            fresh_id=next(self.desk._ids) if needs_id else NO_PRODUCER,
        )
        self.tokens[token] = name, bool(commits)

    def group(self, name: str, number: int) -> None:
        number, some = divmod(number, 4)
        names = [each for index, each in enumerate(NAMES[1:]) if some >> index & 1]
        members = [GroupMember(each, *self.who(each, number)) for each in names]
        self.batch += number % 2
        self.tokens[self.desk.commit_group("spark.q", self.batch, *members)] = name, True

    def store(self, name: str, number: int) -> None:
        if self.desk.in_flight:
            writes = sorted(self.desk.in_flight)
            self.desk.store(writes[number % len(writes)])

    def fail(self, name: str, number: int) -> None:
        if self.fails and self.desk.in_flight:
            writes = sorted(self.desk.in_flight)
            self.desk.fail_store(StorageError("full"), writes[number % len(writes)])

    def mark(self, name: str, number: int) -> None:
        if self.desk.markers:
            markers = self.desk.markers[number % len(self.desk.markers)]
            if number % 3 == 0:
                self.desk.mark(markers, markers.places[0])
            else:
                self.desk.mark(markers)

    def wait(self, name: str, number: int) -> None:
        self.desk.pass_time([0.1, 2, 21, 301][number % 4])

    def operate(self, name: str, number: int) -> None:
        match number % 4:
            case 0:
                self.desk.abort(name)
            case 1:
                self.desk.forget("spark.q")
                self.answered_batch = -1
            case _:
                self.desk.expire()

    def restart(self, name: str, number: int) -> None:
        """The node dies; whatever was on its way is lost, or is not."""
        if number % 2:
            survivors = sorted(self.desk.in_flight)[: number % 4]
            for write in survivors:
                self.desk.log += self.desk.in_flight[write]
        self.tokens.clear()
        self.desk = self.desk.restart()

    def look(self) -> None:
        """Take note of what was said, and see that nothing contradicts what was said before."""
        for token, (name, commits) in list(self.tokens.items()):
            answer = self.desk.answers[token]
            if answer is WAITS:
                continue
            del self.tokens[token]
            if isinstance(answer, Initialised | Ended):
                assert 0 <= answer.epoch < EPOCH_MAX
                self.known[name].append((answer.producer_id, answer.epoch))
            if isinstance(answer, Ended):
                assert self.desk.state(name) != ("CompleteAbort" if commits else "CompleteCommit")
            if isinstance(answer, Decided):
                self.answered_batch = max(self.answered_batch, answer.batch_id)
                assert self.desk.shard._deciding or self.is_visible()
        assert self.fold() == live(self.desk)

    def is_visible(self) -> bool:
        decision = self.desk.shard.decision("spark.q")
        return decision is not None and decision.batch_id >= self.answered_batch

    def fold(self) -> dict[str, object]:
        for record in self.desk.log[self.folded_to :]:
            written = decode(record)
            assert written is not None
            name = "decision"
            if isinstance(written, TransactionWritten):
                name = written.transactional_id
            self.folded.pop(name, None)
            if written.value is not None:
                self.folded[name] = written.value
        self.folded_to = len(self.desk.log)
        return self.folded


def live(desk: Desk) -> dict[str, object]:
    """All that is known as stored."""
    known: dict[str, object] = {
        name: each.stored for name, each in desk.shard._transactions.items() if each.stored is not None
    }
    return known | dict.fromkeys(("decision",) * len(desk.shard.decisions()), decision_of(desk))


def decision_of(desk: Desk) -> object:
    return desk.shard.decision("spark.q")


steps = st.lists(st.integers(0, 15 * 3 * 240 - 1), min_size=60, max_size=200)


@given(st.booleans(), steps)
@settings(max_examples=40, deadline=None)
def test_what_is_live_is_the_fold_of_the_log_and_everything_ends(fails, numbers):
    crowd = Crowd(fails=fails)
    for number in numbers:
        crowd.step(number)

    for _ in range(6):  # the longest timeout, and what follows from it
        crowd.desk.settle()
        crowd.desk.pass_time(21)
        crowd.look()

    assert WAITS not in crowd.desk.answers.values()
    assert live(crowd.desk.restart()) == live(crowd.desk)
    resting = {"Empty", "CompleteCommit", "CompleteAbort"}
    assert {view.state for view in crowd.desk.shard.transactions()} <= resting
    check_log(crowd)


def check_log(crowd: Crowd) -> None:
    """Every id went through legal states only, and never back to an epoch that was left."""
    state: dict[str, State | None] = {}
    left: dict[str, set[tuple[int, int]]] = {}
    newest: dict[str, tuple[int, int]] = {}
    batch = -1
    for record in crowd.desk.log:
        written = decode(record)
        if isinstance(written, DecisionWritten):
            assert written.value is None or written.value.batch_id > batch
            batch = -1 if written.value is None else written.value.batch_id
            continue
        assert written is not None
        name, value = written.transactional_id, written.value
        before, after = state.get(name), None if value is None else value.state
        legal = LEGAL[before] | (BUILT_ON_A_FAILURE.get(before, set()) if crowd.fails else set())
        assert after in legal, f"{name}: {before} -> {after}"
        state[name] = after
        if value is not None:
            who = value.producer_id, value.epoch
            if name in newest and newest[name] != who:
                left.setdefault(name, set()).add(newest[name])
            assert who not in left.get(name, set())
            newest[name] = who


def test_the_crowd_does_sensible_things_too():
    """Otherwise the test above would show little."""
    seen: set[str] = set()
    kinds: set[str] = set()
    for seed in range(24):
        random, crowd = Random(seed), Crowd(fails=seed % 2 == 0)
        for _ in range(200):
            crowd.step(random.randrange(15 * 3 * 240))
            seen |= {view.state for view in crowd.desk.shard.transactions()}
            kinds |= {type(answer).__name__ for answer in crowd.desk.answers.values()}
        epochs = {view.epoch for view in crowd.desk.shard.transactions()}
        kinds |= {"a last epoch" for epoch in epochs if epoch >= EPOCH_MAX - 1}
        decisions = crowd.desk.shard.decisions()
        kinds |= {"a decision with members" for each in decisions.values() if each.members}

    assert seen == {state.value for state in State}
    assert kinds >= {
        "Initialised",
        "Ended",
        "Decided",
        "ConcurrentTransactions",
        "ProducerFenced",
        "InvalidProducerEpoch",
        "InvalidTransactionState",
        "InvalidProducerIdMapping",
        "NotCoordinator",
        "a decision with members",
        "a last epoch",
    }
