"""Every event in every state of a transactional id: what is answered, and what comes of it.

A cell is the answer, and behind a slash the state that the log has then, if it is another one or
the epoch is bumped (`+`), or the producer id is fresh (`*`).

    OK  done                          E   Empty
    CT  ConcurrentTransactions        O   Ongoing
    PF  ProducerFenced                PC  PrepareCommit
    PE  InvalidProducerEpoch          PA  PrepareAbort
    IM  InvalidProducerIdMapping      CC  CompleteCommit
    IS  InvalidTransactionState       CA  CompleteAbort
    TA  TransactionAbortable          -   unknown
    NF  TransactionalIdNotFound
    ..  waits, or was not a request
"""

from collections.abc import Callable
from typing import Final

import pytest

from tests.unit.txn.desk import WAITS, A, B, Desk
from tidelog.errors import (
    BrokerError,
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdNotFound,
)
from tidelog.txn.events import GroupMember, SendMarkers

NAME: Final = "spark.q.0"
OTHER: Final = "spark.q.1"
GROUP: Final = "spark.q"
DAY: Final = 24 * 60 * 60
STATES: Final = {
    None: "-",
    "Empty": "E",
    "Ongoing": "O",
    "PrepareCommit": "PC",
    "PrepareAbort": "PA",
    "CompleteCommit": "CC",
    "CompleteAbort": "CA",
}
ERRORS: Final[dict[type[BrokerError], str]] = {
    ConcurrentTransactions: "CT",
    ProducerFenced: "PF",
    InvalidProducerEpoch: "PE",
    InvalidProducerIdMapping: "IM",
    InvalidTransactionState: "IS",
    TransactionAbortable: "TA",
    TransactionalIdNotFound: "NF",
}


# How a state is reached. The producer's epoch is 1, or 2 where its end or a fence has bumped it.


def unknown(desk: Desk) -> None:
    pass


def empty(desk: Desk) -> None:
    desk.began(NAME)
    desk.began(NAME)


def ongoing(desk: Desk) -> None:
    empty(desk)
    desk.add(NAME, desk.who(NAME), A)
    desk.store()


def ended(*, commits: bool, bumps: bool, is_complete: bool) -> Callable[[Desk], None]:
    def arrange(desk: Desk) -> None:
        ongoing(desk)
        desk.end(NAME, desk.who(NAME), commits=commits, bumps=bumps)
        desk.store()
        if is_complete:
            desk.settle()

    return arrange


def fenced(*, is_complete: bool) -> Callable[[Desk], None]:
    def arrange(desk: Desk) -> None:
        ongoing(desk)
        desk.pass_time(61)
        desk.store()
        if is_complete:
            desk.settle()

    return arrange


def initialising(desk: Desk) -> None:
    empty(desk)
    desk.init(NAME)


def opening(desk: Desk) -> None:
    empty(desk)
    desk.add(NAME, desk.who(NAME), A)


def adding(desk: Desk) -> None:
    ongoing(desk)
    desk.add(NAME, desk.who(NAME), B)


def ending(*, bumps: bool) -> Callable[[Desk], None]:
    def arrange(desk: Desk) -> None:
        ongoing(desk)
        desk.end(NAME, desk.who(NAME), bumps=bumps)

    return arrange


def fencing(desk: Desk) -> None:
    ongoing(desk)
    desk.pass_time(61)


def completing(desk: Desk) -> None:
    ended(commits=True, bumps=True, is_complete=False)(desk)
    desk.mark()


def opening_next(desk: Desk) -> None:
    completing(desk)
    desk.add(NAME, desk.who(NAME), A)


def forgetting(desk: Desk) -> None:
    empty(desk)
    desk.at.seconds += 8 * DAY
    desk.expire()


SITUATIONS: Final[dict[str, Callable[[Desk], None]]] = {
    "-": unknown,
    "E": empty,
    "O": ongoing,
    # Ended by a client of the first protocol: the epoch stays.
    "PC": ended(commits=True, bumps=False, is_complete=False),
    "PA": ended(commits=False, bumps=False, is_complete=False),
    "CC": ended(commits=True, bumps=False, is_complete=True),
    "CA": ended(commits=False, bumps=False, is_complete=True),
    # By one of the second: it is bumped.
    "PC+": ended(commits=True, bumps=True, is_complete=False),
    "PA+": ended(commits=False, bumps=True, is_complete=False),
    "CC+": ended(commits=True, bumps=True, is_complete=True),
    "CA+": ended(commits=False, bumps=True, is_complete=True),
    # By the timeout.
    "PA!": fenced(is_complete=False),
    "CA!": fenced(is_complete=True),
    # On its way.
    "E>E": initialising,
    "E>O": opening,
    "O>O": adding,
    "O>PC": ending(bumps=False),
    "O>PC+": ending(bumps=True),
    "O>PA!": fencing,
    "PC>CC": completing,
    "PC>CC>O": opening_next,
    "E>-": forgetting,
}


# What happens then. Each returns its token, or None where nobody asks.


def who(desk: Desk, behind: int = 0) -> tuple[int, int]:
    if desk.shard.describe(NAME) is None:
        return 100, 0
    producer_id, epoch = desk.who(NAME)
    return producer_id, epoch - behind


def expected(desk: Desk, behind: int) -> dict[str, int]:
    producer_id, epoch = who(desk, behind)
    return {"producer_id": producer_id, "epoch": epoch}


def commit_group(desk: Desk) -> str:
    return desk.commit_group(GROUP, 7, GroupMember(NAME, *who(desk)))


def sweep(desk: Desk) -> None:
    view = desk.shard.describe(OTHER)
    assert view is not None
    desk.commit_group(GROUP, 7, GroupMember(OTHER, view.producer_id, view.epoch))


def mark(desk: Desk) -> None:
    producer_id, epoch = who(desk)
    markers = SendMarkers(
        transactional_id=NAME,
        producer_id=producer_id,
        epoch=epoch,
        commits=True,
        is_bumped=False,
        places=(A, B),
    )
    desk.markers.clear()
    desk.mark(markers)


def time_out(desk: Desk) -> None:
    if not desk.in_flight:
        desk.pass_time(61)


def expire(desk: Desk) -> None:
    desk.at.seconds += 8 * DAY
    desk.expire()


EVENTS: Final[dict[str, Callable[[Desk], str | None]]] = {
    "init": lambda desk: desk.init(NAME),
    "init as itself": lambda desk: desk.init(NAME, **expected(desk, 0)),
    "init as before": lambda desk: desk.init(NAME, **expected(desk, 1)),
    "init as a zombie": lambda desk: desk.init(NAME, **expected(desk, 2)),
    "init as another": lambda desk: desk.init(NAME, producer_id=5, epoch=0),
    "add": lambda desk: desk.add(NAME, who(desk), B),
    "add again": lambda desk: desk.add(NAME, who(desk), A),
    "add as before": lambda desk: desk.add(NAME, who(desk, 1), B),
    "add as another": lambda desk: desk.add(NAME, (5, 0), B),
    "leader adds": lambda desk: desk.add(NAME, who(desk), B, implicit=True),
    "leader, before": lambda desk: desk.add(NAME, who(desk, 1), B, implicit=True),
    "verify": lambda desk: desk.add(NAME, who(desk), A, verify_only=True),
    "verify other": lambda desk: desk.add(NAME, who(desk), B, verify_only=True),
    "verify, before": lambda desk: desk.add(NAME, who(desk, 1), A, verify_only=True),
    "commit": lambda desk: desk.end(NAME, who(desk)),
    "abort": lambda desk: desk.end(NAME, who(desk), commits=False),
    "commit, before": lambda desk: desk.end(NAME, who(desk, 1)),
    "commit, another": lambda desk: desk.end(NAME, (5, 0)),
    "commit+": lambda desk: desk.end(NAME, who(desk), bumps=True),
    "abort+": lambda desk: desk.end(NAME, who(desk), commits=False, bumps=True),
    "commit+, before": lambda desk: desk.end(NAME, who(desk, 1), bumps=True),
    "abort+, before": lambda desk: desk.end(NAME, who(desk, 1), commits=False, bumps=True),
    "group commits": commit_group,
    "group sweeps": sweep,
    "operator aborts": lambda desk: desk.abort(NAME),
    "timeout": time_out,
    "marked": mark,
    "expire": expire,
}

RESTING: Final = """
                |-   |E     |O     |PC   |PA   |CC    |CA    |PC+  |PA+  |CC+   |CA+   |PA!  |CA!
init            |OK/E|OK/E+ |CT/PA+|CT   |CT   |OK/E+ |OK/E+ |CT   |CT   |OK/E+ |OK/E+ |CT   |OK/E+
init as itself  |OK/E|OK/E+ |CT/PA+|CT   |CT   |OK/E+ |OK/E+ |CT   |CT   |OK/E+ |OK/E+ |CT   |OK/E+
init as before  |OK/E|PF    |PF    |PF   |PF   |PF    |PF    |CT   |CT   |OK/E  |OK/E  |PF   |PF
init as a zombie|OK/E|PF    |PF    |PF   |PF   |PF    |PF    |PF   |PF   |PF    |PF    |PF   |PF
init as another |OK/E|PF    |PF    |PF   |PF   |PF    |PF    |PF   |PF   |PF    |PF    |PF   |PF
add             |IM  |OK/O  |OK    |..   |..   |OK/O  |OK/O  |..   |..   |OK/O  |OK/O  |..   |OK/O
add again       |IM  |OK/O  |OK    |..   |..   |OK/O  |OK/O  |..   |..   |OK/O  |OK/O  |..   |OK/O
add as before   |IM  |PF    |PF    |PF   |PF   |PF    |PF    |PF   |PF   |PF    |PF    |PF   |PF
add as another  |IM  |IM    |IM    |IM   |IM   |IM    |IM    |IM   |IM   |IM    |IM    |IM   |IM
leader adds     |IM  |OK/O  |OK    |..   |..   |OK/O  |OK/O  |..   |..   |OK/O  |OK/O  |..   |OK/O
leader, before  |IM  |PE    |PE    |PE   |PE   |PE    |PE    |PE   |PE   |PE    |PE    |PE   |PE
verify          |IM  |TA    |OK    |CT   |CT   |TA    |TA    |CT   |CT   |TA    |TA    |CT   |TA
verify other    |IM  |TA    |TA    |CT   |CT   |TA    |TA    |CT   |CT   |TA    |TA    |CT   |TA
verify, before  |IM  |PE    |PE    |PE   |PE   |PE    |PE    |PE   |PE   |PE    |PE    |PE   |PE
commit          |IM  |IS    |OK/PC |OK   |IS   |OK    |IS    |OK   |IS   |OK    |IS    |IS   |IS
abort           |IM  |IS    |OK/PA |IS   |OK   |IS    |OK    |IS   |OK   |IS    |OK    |OK   |OK
commit, before  |IM  |PF    |PF    |PF   |PF   |PF    |PF    |PF   |PF   |PF    |PF    |PF   |PF
commit, another |IM  |IM    |IM    |IM   |IM   |IM    |IM    |IM   |IM   |IM    |IM    |IM   |IM
commit+         |IM  |IS    |OK/PC+|CT   |CT   |IS    |IS    |CT   |CT   |IS    |IS    |CT   |IS
abort+          |IM  |OK/CA+|OK/PA+|CT   |CT   |OK/CA+|OK/CA+|CT   |CT   |OK/CA+|OK/CA+|CT   |OK/CA+
commit+, before |IM  |PF    |PF    |PF   |PF   |PF    |PF    |OK   |IS   |OK    |IS    |PF   |PF
abort+, before  |IM  |PF    |PF    |PF   |PF   |PF    |PF    |IS   |OK   |IS    |OK    |PF   |PF
group commits   |IM  |IS    |OK/PC+|IS   |IS   |IS    |IS    |IS   |IS   |IS    |IS    |IS   |IS
group sweeps    |..  |..    |../PA+|..   |..   |..    |..    |..   |..   |..    |..    |..   |..
operator aborts |NF  |IS    |OK/PA+|IS   |OK   |IS    |IS    |IS   |OK   |IS    |IS    |OK   |IS
timeout         |..  |..    |../PA+|..   |..   |..    |..    |..   |..   |..    |..    |..   |..
marked          |..  |..    |..    |../CC|../CA|..    |..    |../CC|../CA|..    |..    |../CA|..
expire          |..  |../-  |..    |..   |..   |../-  |../-  |..   |..   |../-  |../-  |..   |../-
"""

MOVING: Final = """
                |E>E|E>O   |O>O   |O>PC|O>PC+|O>PA!|PC>CC|PC>CC>O|E>-
init            |CT |CT    |CT    |CT  |CT   |CT   |CT   |CT     |CT
init as itself  |CT |CT    |CT    |CT  |CT   |CT   |CT   |CT     |CT
init as before  |CT |CT    |CT    |CT  |CT   |CT   |CT   |CT     |CT
init as a zombie|CT |CT    |CT    |CT  |CT   |CT   |CT   |CT     |CT
init as another |CT |CT    |CT    |CT  |CT   |CT   |CT   |CT     |CT
add             |CT |OK    |OK    |CT  |CT   |CT   |OK/O |OK     |CT
add again       |CT |OK    |OK    |CT  |CT   |CT   |OK/O |OK     |CT
add as before   |PF |PF    |PF    |PF  |PF   |PF   |PF   |PF     |PF
add as another  |IM |IM    |IM    |IM  |IM   |IM   |IM   |IM     |IM
leader adds     |CT |OK    |OK    |CT  |CT   |CT   |OK/O |OK     |CT
leader, before  |PE |PE    |PE    |PE  |PE   |PE   |PE   |PE     |PE
verify          |CT |TA    |OK    |CT  |CT   |CT   |TA   |TA     |CT
verify other    |CT |TA    |TA    |CT  |CT   |CT   |TA   |TA     |CT
verify, before  |PE |PE    |PE    |PE  |PE   |PE   |PE   |PE     |PE
commit          |CT |CT    |CT    |CT  |CT   |CT   |OK   |CT     |CT
abort           |CT |CT    |CT    |CT  |CT   |CT   |IS   |CT     |CT
commit, before  |PF |PF    |PF    |PF  |PF   |PF   |PF   |PF     |PF
commit, another |IM |IM    |IM    |IM  |IM   |IM   |IM   |IM     |IM
commit+         |CT |CT    |CT    |CT  |CT   |CT   |CT   |CT     |CT
abort+          |CT |CT    |CT    |CT  |CT   |CT   |CT   |CT     |CT
commit+, before |PF |PF    |PF    |PF  |PF   |PF   |OK   |CT     |PF
abort+, before  |PF |PF    |PF    |PF  |PF   |PF   |IS   |CT     |PF
group commits   |CT |CT    |CT    |CT  |CT   |CT   |CT   |CT     |CT
group sweeps    |.. |../PA+|../PA+|..  |..   |..   |..   |../PA+ |..
operator aborts |CT |CT    |CT    |CT  |CT   |CT   |CT   |CT     |CT
timeout         |.. |..    |..    |..  |..   |..   |..   |..     |..
marked          |.. |..    |..    |..  |..   |..   |..   |..     |..
expire          |.. |..    |..    |..  |..   |..   |..   |..     |..
"""


def outcome(situation: str, event: str) -> str:
    """What the machine does, as a cell of the table."""
    desk = Desk()
    desk.opened(OTHER, A)  # for a decision that leaves the id behind
    SITUATIONS[situation](desk)
    before = desk.shard.describe(NAME)
    if desk.in_flight:  # what is on its way counts as there
        other = Desk()
        other.opened(OTHER, A)
        SITUATIONS[situation](other)
        other.store()
        before = other.shard.describe(NAME)
    token = EVENTS[event](desk)
    desk.store()
    answer = None if token is None else desk.answers[token]
    if token is None or answer is WAITS:
        said = ".."
    elif isinstance(answer, BrokerError):
        said = ERRORS[type(answer)]
    else:
        found = list(answer.values()) if isinstance(answer, dict) else []
        said = next((ERRORS[type(error)] for error in found if error is not None), "OK")
    after = desk.shard.describe(NAME)
    state = STATES[None if after is None else after.state]
    bump = ""
    if before is not None and after is not None:
        is_fresh = after.producer_id != before.producer_id
        bump = "*" if is_fresh else "+" * (after.epoch - before.epoch)
    is_same = before is not None and after is not None and before.state == after.state
    is_same = (is_same and not bump) or before is after is None
    return said if is_same else f"{said}/{state}{bump}"


def cells(table: str) -> list[tuple[str, str, str]]:
    rows = [[cell.strip() for cell in row.split("|")] for row in table.split("\n")[1:-1]]
    columns = rows[0][1:]
    return [
        (situation, row[0], cell)
        for row in rows[1:]
        for situation, cell in zip(columns, row[1:], strict=True)
    ]


CELLS: Final = cells(RESTING) + cells(MOVING)


@pytest.mark.parametrize(("situation", "event", "expectation"), CELLS)
def test_every_event_in_every_state(situation, event, expectation):
    assert outcome(situation, event) == expectation


def test_the_table_leaves_nothing_out():
    pairs = {(situation, event) for situation, event, _ in CELLS}

    assert pairs == {(situation, event) for situation in SITUATIONS for event in EVENTS}
    assert len(CELLS) == len(pairs)
