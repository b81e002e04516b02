"""What a broker tells the voters, and to whom it believes to have told the rest."""

import asyncio
from types import SimpleNamespace
from typing import Any

from tidelog.cluster.membership import Membership
from tidelog.cluster.messages import Beat, HeartbeatAnswer
from tidelog.peers.stream import PeerUnreachable

VOTER = 2


class Reports:
    """One replica, of which a voter is told once."""

    def __init__(self) -> None:
        self.told: set[int] = set()

    def news(self, voter: int) -> dict[str, Any]:
        return {} if voter in self.told else {"replica": "report"}

    def has_unheard(self, voter: int, news: dict[str, Any]) -> bool:
        return voter not in self.told and not news

    def acknowledged(self, voter: int, news: dict[str, Any]) -> bool:
        self.told.add(voter)
        return False

    def forget(self, voter: int) -> None:
        self.told.discard(voter)


async def beats_to(processes: list[str]) -> list[tuple[str, int]]:
    """What each of these processes of a voter hears, one heartbeat each: (process, replicas).

    An empty one does not answer.
    """
    heard: list[tuple[str, int]] = []
    is_over = asyncio.Event()

    async def ask(voter: int, beat: Beat, *_: Any, seconds_max: float) -> HeartbeatAnswer:
        heard.append((beat.process, len(beat.heartbeat.replicas)))
        if len(heard) == len(processes):
            is_over.set()
        process = processes[min(len(heard), len(processes)) - 1]
        if not process:
            raise PeerUnreachable("it is away")
        return HeartbeatAnswer(is_controller=False, process=process)

    tasks = []

    def spawn(work: Any) -> Any:
        tasks.append(asyncio.get_running_loop().create_task(work))
        return tasks[-1]

    voters = SimpleNamespace(ids=[VOTER])
    quorum = SimpleNamespace(raft=SimpleNamespace(voters=voters), spawn=spawn)
    image = SimpleNamespace(brokers={})
    metadata = SimpleNamespace(image=image, applied=0, on_applied=lambda listener: None)
    member: Any = SimpleNamespace(
        metadata=metadata,
        quorum=quorum,
        hub=SimpleNamespace(ask=ask),
        me=SimpleNamespace(key=SimpleNamespace(id=1)),
        on_lead=lambda listener: None,
        on_follow=lambda listener: None,
    )
    host: Any = SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: 0.0))
    membership = Membership(
        host,
        member,
        interval_seconds=0.0,
        lease_seconds=1.0,
        reporting=Reports(),
        room=SimpleNamespace(is_short=False, is_full=False),
        on_fatal=lambda error: None,
    )
    membership.start()
    await is_over.wait()
    for task in tasks:
        task.cancel()
    return heard[: len(processes)]


def test_a_heartbeat_names_the_process_that_has_heard_what_it_leaves_out():
    assert asyncio.run(beats_to(["p", "p", "q", "q", "q"])) == [
        ("", 1),
        ("p", 0),
        ("p", 0),
        ("", 1),
        ("q", 0),
    ]


def test_a_voter_that_did_not_answer_is_told_all_again_whoever_it_is():
    assert asyncio.run(beats_to(["p", "", "p", "p"])) == [("", 1), ("p", 0), ("", 1), ("p", 0)]
