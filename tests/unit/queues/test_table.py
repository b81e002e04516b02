"""Every step in every state of a message: where it may lead.

D  DELAYED     G  GIVING      -  not possible: a bug
R  READY       O  GIVEN
B  BLOCKED     S  SETTLING    x  gone
"""

import pytest

from tidelog.queues.message import OUT, RESTING, Message, State, Step

LETTERS = {
    State.DELAYED: "D",
    State.READY: "R",
    State.BLOCKED: "B",
    State.GIVING: "G",
    State.GIVEN: "O",
    State.SETTLING: "S",
    State.GONE: "x",
}

#           RELEASED  TAKEN  GAVE  SETTLED  KEPT  DELETED
TABLE = """
NEW         DRB       -      O     S        -     -
DELAYED     DRB       -      -     S        -     -
READY       RB        G      -     S        -     -
BLOCKED     RB        -      -     S        -     -
GIVING      DRB       -      O     -        -     -
GIVEN       DRB       -      -     S        -     -
SETTLING    DRB       -      O     -        O     x
GONE        -         -      -     -        -     -
"""
CELLS = [
    (State[row.split()[0]], step, set(cell) - {"-"})
    for row in TABLE.strip().splitlines()
    for step, cell in zip(Step, row.split()[1:], strict=True)
]


@pytest.mark.parametrize(("state", "step", "allowed"), CELLS)
def test_a_message_goes_where_the_table_says_and_nowhere_else(state, step, allowed):
    for to, letter in LETTERS.items():
        message = Message(1, 1, 0, 0)
        message.state = state
        if letter in allowed:
            message.take(step, to)
            assert message.state is to
        else:
            with pytest.raises(AssertionError):
                message.take(step, to)
            assert message.state is state


def test_every_state_is_new_resting_out_or_gone():
    assert {State.NEW, State.GONE} | RESTING | OUT == set(State)
