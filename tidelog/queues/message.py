"""One message that is given out: the states it passes through, and what moves it on.

Rule 1: a message is in one state of one lane. `TRANSITIONS` has every step; any other is a bug.
Rule 2: nobody but its owner, its time and an operator moves a message that is out.
Rule 3: nothing here knows of a log, a request or a queue.

    state      entered when                                    left when
    ---------  ----------------------------------------------  ----------------------------------
    DELAYED    nobody has it, and its time has not come        its time comes
    READY      nobody has it, and it may be given out          a receive takes it
    BLOCKED    nobody has it, and another of its key is first  that one leaves
    GIVING     a receive has taken it                          the delivery is stored, or fails
    GIVEN      its delivery is stored: somebody owns it        its time is over, or it is settled
    SETTLING   what becomes of it is on its way to the log     that is stored, or fails
    GONE       its deletion is stored                          never

    step       what happened
    ---------  -------------------------------------------------------------------------------
    RELEASED   nobody has it (any more): it rests where it belongs
    TAKEN      a receive takes it
    GAVE       a delivery is stored: a receive's, or one that its owner has extended
    SETTLED    its owner, an operator or the last of its times decides what becomes of it
    KEPT       that was not stored: its owner has it as before
    DELETED    its deletion is stored
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from tidelog.model import Offset

MAIN: Final = 0
DEAD: Final = 1
"""The lanes: what is to be done, and what nobody managed to do."""
OTHER: Final = {MAIN: DEAD, DEAD: MAIN}
NO_KEY: Final = 0
_RECEIPT_CHARACTERS: Final = 40


class Receipt(NamedTuple):
    """What a receipt names: a message, and which of its deliveries."""

    offset: Offset
    delivery: int


def parse_receipt(text: str) -> Receipt | None:
    """What a receipt names; None unless it is spelt as `Message.receipt` spells it.

    Two texts that name the same delivery would otherwise settle one message twice.
    """
    offset, _, count = text.partition("-")
    if len(text) >= _RECEIPT_CHARACTERS or not (offset.isdecimal() and count.isdecimal()):
        return None
    found = Receipt(int(offset), int(count))
    return found if text == f"{found.offset}-{found.delivery}" else None


class State(Enum):
    __hash__ = object.__hash__  # Enum's is slow: states are looked up at every step

    NEW = "new"
    DELAYED = "delayed"
    READY = "ready"
    BLOCKED = "blocked"
    GIVING = "giving"
    GIVEN = "given"
    SETTLING = "settling"
    GONE = "gone"


class Step(Enum):
    __hash__ = object.__hash__

    RELEASED = "released"
    TAKEN = "taken"
    GAVE = "gave"
    SETTLED = "settled"
    KEPT = "kept"
    DELETED = "deleted"


RESTING: Final = frozenset((State.DELAYED, State.READY, State.BLOCKED))
"""Nobody has it."""
OUT: Final = frozenset((State.GIVING, State.GIVEN, State.SETTLING))

TRANSITIONS: Final[dict[tuple[State, Step], frozenset[State]]] = {
    (State.NEW, Step.RELEASED): RESTING,
    (State.NEW, Step.GAVE): frozenset((State.GIVEN,)),
    (State.NEW, Step.SETTLED): frozenset((State.SETTLING,)),
    (State.DELAYED, Step.RELEASED): RESTING,
    (State.DELAYED, Step.SETTLED): frozenset((State.SETTLING,)),
    (State.READY, Step.RELEASED): frozenset((State.READY, State.BLOCKED)),
    (State.READY, Step.TAKEN): frozenset((State.GIVING,)),
    (State.READY, Step.SETTLED): frozenset((State.SETTLING,)),
    (State.BLOCKED, Step.RELEASED): frozenset((State.READY, State.BLOCKED)),
    (State.BLOCKED, Step.SETTLED): frozenset((State.SETTLING,)),
    (State.GIVING, Step.GAVE): frozenset((State.GIVEN,)),
    (State.GIVING, Step.RELEASED): RESTING,
    (State.GIVEN, Step.RELEASED): RESTING,
    (State.GIVEN, Step.SETTLED): frozenset((State.SETTLING,)),
    (State.SETTLING, Step.GAVE): frozenset((State.GIVEN,)),
    (State.SETTLING, Step.RELEASED): RESTING,
    (State.SETTLING, Step.KEPT): frozenset((State.GIVEN,)),
    (State.SETTLING, Step.DELETED): frozenset((State.GONE,)),
}


@dataclass(slots=True, eq=False)
class Message:
    """A message that is not merely waiting for its turn, or that was given out before."""

    offset: Offset
    sequence: int
    made_ms: int
    size: int
    key: int = NO_KEY
    """What its key is known by; equal keys have equal numbers."""
    count: int = 0
    """How often it was given out, in all lanes: so no two receipts of a message are the same."""
    count_before: int = 0
    """How often it had been given out when it came into this lane."""
    lane: int = MAIN
    since: int = 0
    """The next sequence of the log when it came into this lane."""
    state: State = State.NEW
    visibility_ms: int = -1
    """How long its owner has it; -1 if nobody does."""
    not_before_ms: int = 0
    delay_ms: int = 0
    has_delivery: bool = False
    """Whether the log has a record of how often it was given out, which goes with it."""
    aged: int = 0
    """A bit for each lane whose `Ages` has it."""

    @property
    def receipt(self) -> str:
        return f"{self.offset}-{self.count}"

    @property
    def is_resting(self) -> bool:
        return self.state in RESTING

    @property
    def is_out(self) -> bool:
        return self.state in OUT

    def take(self, step: Step, state: State) -> None:
        """Go on to `state` by `step`."""
        allowed = TRANSITIONS.get((self.state, step), frozenset())
        assert state in allowed, f"{self.state.name} by {step.name} to {state.name}"
        self.state = state
