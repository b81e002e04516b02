"""Situations: what a cluster goes through beyond faults that strike at random.

A situation is a row of `SITUATIONS`: it changes a plan, by settings, by the layout of the cluster,
or by faults and operators' verbs of its own kinds.

Rule 1: each situation is drawn by a generator of its own, named after it. So a new row leaves the
        plans of all seeds as they are, but for what it adds.
Rule 2: a seed has a situation with the row's chance. If the kinds of faults are limited
        (`--faults`), a situation is on exactly if one of its kinds is named, or it is itself.
Rule 3: a situation that is `alone` is the only thing that happens to its seed: it drops all other
        faults, and no other situation is drawn.
"""

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias

from tidelog.simulation import (
    electing,
    group_lives,
    keyvalue_drawn,
    knocks,
    layout,
    links,
    offset_lives,
    strangers,
    who_leads,
)
from tidelog.simulation.deletions import alter_compaction, alter_retention, delete_records, situate_deletions
from tidelog.simulation.descriptors import (
    draw_few_descriptors,
    draw_interrupts,
    exhaust_descriptors,
    interrupt_disk,
)
from tidelog.simulation.faults import DAMAGING, KINDS, Befall
from tidelog.simulation.full_disks import (
    draw_failed_looks,
    draw_full_disks,
    draw_one_full_disk,
    fail_looks,
    fill_disks,
    fill_one_disk,
    refuse_names,
)
from tidelog.simulation.moves import draw_move, move
from tidelog.simulation.operators import draw_orders, order
from tidelog.simulation.plan import Fault, Plan, moments, with_faults
from tidelog.simulation.questions import draw_questions, question
from tidelog.simulation.rot import ROT, rot_sealed, rotting
from tidelog.simulation.rot import STORIES as ROT_STORIES
from tidelog.simulation.rot_indexes import ROT_INDEXES, rot_indexes, rotting_indexes
from tidelog.simulation.rot_notes import (
    ROT_NOTES,
    ROT_VIEWS,
    rot_notes,
    rot_views,
    rotting_notes,
    rotting_views,
)
from tidelog.simulation.stories import CLUSTERS, STORIES, WITH_REPLICAS
from tidelog.simulation.upkeep import drain, draw_upkeep, roll, shut_down
from tidelog.simulation.world import World

Situate: TypeAlias = Callable[[Plan, random.Random, Collection[str]], Plan]
"""Changes a plan. Takes its generator, and the kinds of random faults that the plan may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Something that may be true of a seed, in some stories."""

    name: str
    """Of its generator, too: to rename a situation changes the plans of seeds."""
    stories: Collection[str]
    chance: float
    situate: Situate
    kinds: Mapping[str, Befall] = field(default_factory=dict)
    """The kinds of faults and verbs that only this situation draws."""
    alone: bool = False
    """Whether it shows only what it should where nothing else happens."""


def _moves(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """An operator moves replicas."""
    is_damaged = not set(DAMAGING).isdisjoint(enabled)
    draw = partial(
        draw_move,
        choose,
        nodes=plan.nodes,
        topics=plan.pace.topics,
        partitions=plan.pace.partitions,
        sizes=(3,) if is_damaged else (2, 3, 3, 3, 4),
    )
    rate = choose.choice((0.3, 1.0, 3.0))  # per simulated second
    times = moments(choose, rate, plan.chaos_seconds)
    return with_faults(plan, [Fault(at, "move", draw()) for at in times])


_WITH_COPIES: Final = WITH_REPLICAS | {"groups", "queues"}

_SMALL: Final = {
    "offsets_topic_num_partitions": 2,
    "transaction_state_log_num_partitions": 2,
    "queues_topic_num_partitions": 2,
}
"""How few partitions the topics have that the questions bring about."""


def _operators(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Operators ask any node for all that can be asked, over HTTP and in Kafka's protocol."""
    node = {**_SMALL, **plan.node}
    orders = [*draw_orders(plan, choose), *draw_questions(plan, choose)]
    return with_faults(replace(plan, node=node), orders)


SITUATIONS: Final = (
    Situation(
        name="one full disk",
        stories=CLUSTERS,
        chance=0.04,
        situate=draw_one_full_disk,
        kinds={"fill_one_disk": fill_one_disk},
        alone=True,
    ),
    # Before those that draw nodes: it changes how many there are.
    Situation(name="observers", stories=_WITH_COPIES, chance=0.25, situate=layout.observers),
    Situation(name="racks", stories=("replicated",), chance=0.3, situate=layout.racks),
    Situation(
        name="lead",
        stories=WITH_REPLICAS,
        chance=0.3,
        situate=who_leads.lead,
        kinds={"promote": who_leads.promote, "elect_preferred": who_leads.elect_preferred},
    ),
    Situation(
        name="fail_over_by_hand",
        stories=WITH_REPLICAS,
        chance=0.15,
        situate=who_leads.fail_over_by_hand,
        kinds={"promote": who_leads.promote, "manual_failover": who_leads.manual_failover},
    ),
    Situation(
        name="operators",
        stories=CLUSTERS,
        chance=0.25,
        situate=_operators,
        kinds={"order": order, "question": question},
    ),
    Situation(
        name="upkeep",
        stories=CLUSTERS,
        chance=0.2,
        situate=draw_upkeep,
        kinds={"roll": roll, "shut_down": shut_down, "drain": drain},
    ),
    Situation(name="moves", stories=WITH_REPLICAS, chance=0.5, situate=_moves, kinds={"move": move}),
    Situation(name="rot", stories=ROT_STORIES, chance=0.3, situate=rotting, kinds={ROT: rot_sealed}),
    Situation(
        name="deletions",
        stories=WITH_REPLICAS,
        chance=0.4,
        situate=situate_deletions,
        kinds={
            "delete_records": delete_records,
            "alter_retention": alter_retention,
            "alter_compaction": alter_compaction,
        },
    ),
    Situation(
        name="rot_indexes",
        stories=STORIES,
        chance=0.2,
        situate=rotting_indexes,
        kinds={ROT_INDEXES: rot_indexes},
    ),
    Situation(
        name="rot_notes", stories=STORIES, chance=0.2, situate=rotting_notes, kinds={ROT_NOTES: rot_notes}
    ),
    Situation(
        name="rot_views", stories=("kv",), chance=0.3, situate=rotting_views, kinds={ROT_VIEWS: rot_views}
    ),
    Situation(
        name="reset_one_end",
        stories=STORIES,
        chance=0.2,
        situate=links.reset_one_end,
        kinds={"reset_one_end": World.reset_one_end},
    ),
    Situation(
        name="forget", stories=STORIES, chance=0.2, situate=links.forget, kinds={"forget": World.forget}
    ),
    Situation(name="part", stories=STORIES[1:], chance=0.2, situate=links.part, kinds={"part": World.part}),
    Situation(
        name="failed looks",
        stories=STORIES,
        chance=0.1,
        situate=draw_failed_looks,
        kinds={"fail_looks": fail_looks},
    ),
    Situation(
        name="few descriptors",
        stories=STORIES,
        chance=0.15,
        situate=draw_few_descriptors,
        kinds={"exhaust_descriptors": exhaust_descriptors},
    ),
    Situation(
        name="interrupts",
        stories=STORIES,
        chance=0.1,
        situate=draw_interrupts,
        kinds={"interrupt_disk": interrupt_disk},
    ),
    Situation(
        name="secret", stories=CLUSTERS, chance=0.3, situate=knocks.guarded, kinds={"knock": knocks.knock}
    ),
    Situation(
        name="strangers",
        stories=("transactions",),
        chance=0.3,
        situate=strangers.strangers,
        kinds={
            "forge_marker": strangers.forge_marker,
            "forge_batch": strangers.forge_batch,
            "forget_batch": strangers.forget_batch,
        },
    ),
    Situation(
        name="group lives",
        stories=("groups",),
        chance=0.4,
        situate=group_lives.group_lives,
        kinds={"remake_topic": group_lives.remake_topic, "restart_static": group_lives.restart_static},
    ),
    Situation(name="watches", stories=("kv",), chance=0.3, situate=keyvalue_drawn.watches),
    Situation(name="copies", stories=("kv",), chance=0.3, situate=keyvalue_drawn.copies),
    Situation(name="buckets anew", stories=("kv",), chance=0.25, situate=keyvalue_drawn.buckets_anew),
    Situation(
        name="offset lives",
        stories=("groups",),
        chance=0.4,
        situate=offset_lives.offset_lives,
        kinds={
            "delete_offsets": offset_lives.delete_offsets,
            "expire_offsets": offset_lives.expire_offsets,
            "delete_group": offset_lives.delete_group,
        },
    ),
    Situation(name="snapshots", stories=STORIES[1:], chance=0.3, situate=electing.snapshots),
    Situation(name="reserve", stories=STORIES, chance=0.3, situate=electing.reserve),
    Situation(
        name="voters",
        stories=STORIES[1:],
        chance=0.2,
        situate=electing.voters,
        kinds={"change_voter": electing.change_voter},
    ),
    Situation(
        name="new_disk",
        stories=("cluster",),
        chance=0.25,
        situate=electing.new_disk,
        kinds={"new_disk": electing.befall_new_disk},
    ),
    Situation(
        name="metadata rot",
        stories=STORIES[1:],
        chance=0.2,
        situate=electing.rot,
        kinds={"rot_metadata": electing.rot_metadata, "misdirect": World.misdirect_write},
    ),
    # After those that let logs rot: it has none of them beside it.
    Situation(
        name="force",
        stories=("replicated",),
        chance=0.2,
        situate=who_leads.force,
        kinds={
            "force": who_leads.force_promote,
            "elect_unclean": who_leads.elect_unclean,
            "allow_unclean": who_leads.allow_unclean,
        },
    ),
    # After those that draw moments until the chaos ends: it may end later.
    Situation(
        name="full disks",
        stories=STORIES,
        chance=0.07,
        situate=draw_full_disks,
        kinds={"fill_disks": fill_disks, "refuse_names": refuse_names},
    ),
    # The last: it has no other fault beside it, and judges what a cluster does meanwhile.
    Situation(
        name="cover",
        stories=WITH_REPLICAS,
        chance=0.05,
        situate=links.cover,
        kinds={"pause_one": links.pause_one, "part_one_link": links.part_one_link},
    ),
)

EVERY_KIND: Final[dict[str, Befall]] = {kind: befall for kind, (_, befall) in KINDS.items()}
"""How each kind of fault or verb happens, of random faults and of situations."""
for _situation in SITUATIONS:
    EVERY_KIND.update(_situation.kinds)


def situate(plan: Plan, enabled: Collection[str], kinds: Collection[str] | None) -> Plan:
    """The plan with the situations that its seed has."""
    for situation in SITUATIONS:
        if plan.story not in situation.stories:
            continue
        choose = random.Random(f"{plan.seed} {situation.name}")
        if kinds is None:
            is_on = choose.random() < situation.chance
        else:
            is_on = not {situation.name, *situation.kinds}.isdisjoint(kinds)
        if is_on:
            plan = situation.situate(plan, choose, enabled)
            plan = replace(plan, situations=(*plan.situations, situation.name))
            if situation.alone:
                break
    return plan
