"""All verbs, by name."""

from collections.abc import Mapping
from typing import Final

from tidelog.operators import (
    acls,
    brokers,
    configs,
    elections,
    group_coordinators,
    groups,
    moves,
    offsets,
    promotions,
    quorum,
    tokens,
    topics,
    transactions,
    users,
)
from tidelog.operators.verbs import Verb

VERBS: Final[Mapping[str, Verb]] = {
    verb.name: verb
    for family in (
        topics,
        configs,
        brokers,
        elections,
        promotions,
        moves,
        quorum,
        groups,
        group_coordinators,
        transactions,
        offsets,
        users,
        acls,
        tokens,
    )
    for verb in family.VERBS
}
