"""Where a transactional id is coordinated: members of one decision meet in one partition.

Rule: every node gives the same answer for the same id, forever; the log is placed by it.
"""

from typing import Final

GROUPED_PREFIX: Final = "spark."
"""Ids of this prefix belong to groups, of which one decision can commit many members."""


def coordinator_key(transactional_id: str) -> str:
    """The name that is hashed to find the coordinator of `transactional_id`.

    `spark.<query>.<slot>` is placed by `spark.<query>`, which is the name of its group and is
    placed by itself; so are all other ids, as in Kafka.
    """
    if transactional_id.startswith(GROUPED_PREFIX):
        group = transactional_id.rpartition(".")[0]
        if len(group) > len(GROUPED_PREFIX):
            return group
    return transactional_id


def group_of(transactional_id: str) -> str | None:
    """The group of which the id is a member, if it is of one."""
    key = coordinator_key(transactional_id)
    return None if key == transactional_id else key
