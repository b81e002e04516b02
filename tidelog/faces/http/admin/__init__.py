"""What operators do over HTTP: all that the commands do to groups, brokers, settings and the rest.

    asking.py        the node as a client of its own cluster; lists of partitions, page by page
    groups.py        consumer groups: how far they are, where they go on, which are forgotten
    brokers.py       brokers: listed, drained, stopped, removed
    configs.py       settings of topics and brokers
    moves.py         replicas that move, and elections
    quorum.py        who votes on the metadata
    transactions.py  what is open, since when, and how it is ended

Rule: what a command does in several steps is done here by the same code (`tidelog.client`), so that
both do the same and refuse the same.
"""

from typing import Final

from tidelog.faces.http.admin import brokers, configs, groups, moves, quorum, transactions

OPERATIONS: Final = (
    *groups.OPERATIONS,
    *brokers.OPERATIONS,
    *configs.OPERATIONS,
    *moves.OPERATIONS,
    *quorum.OPERATIONS,
    *transactions.OPERATIONS,
)
