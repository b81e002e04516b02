"""A quorum in one seeded, single-threaded process, under faults.

A run has three parts: faults; then healing, after which the quorum must come to serve again; then
one voter is cut off and comes back, which must disturb nobody.

    python -m tests.support.raft_cluster SEED      # replay a seed, with its whole trace
"""

import sys
from collections.abc import Callable, Iterator

from tests.support.raft_invariants import Record, Violation
from tests.support.raft_world import Disk, Node, World
from tidelog.errors import BrokerError
from tidelog.raft.logview import UNKNOWN_END
from tidelog.raft.machine import Raft
from tidelog.raft.messages import Position, Resign, SnapshotId, SnapshotTaken, Unanswered
from tidelog.raft.voters import Voter, VoterSet


class Cluster(World):
    """A world with faults, load, and an end at which all must be well."""

    # Faults and load.

    def _begin_faults(self) -> None:
        swarm = self.swarm
        kinds: list[tuple[float, Callable[[], None]]] = [
            (swarm.write, self.write),
            (swarm.crash, self._crash_some),
            (swarm.pause, self._pause_some),
            (swarm.cut, self._cut_some),
            (swarm.change, self.change_voters),
            (swarm.snapshot, self._take_snapshot),
            (swarm.resign, self._resign_some),
            (swarm.wipe, self._wipe_some),
            (swarm.rot, self._rot_some),
        ]
        for rate, do in kinds:
            if rate > 0:
                self._repeat(rate, do)

    def _repeat(self, rate: float, do: Callable[[], None]) -> None:
        def again() -> None:
            if not self.is_calm:
                do()
                self._later(self.chance.expovariate(rate), again)

        self._later(self.chance.expovariate(rate), again)

    def _some(self) -> Node:
        """Any node; leaders more often, since most goes wrong around them."""
        leaders = list(self.leaders())
        if leaders and self.chance.random() < 0.4:
            return self.chance.choice(leaders)
        return self.chance.choice(list(self.nodes.values()))

    def leaders(self) -> Iterator[Node]:
        return (n for n in self.nodes.values() if n.raft is not None and n.raft.is_leader)

    def write(self) -> None:
        """A client writes to whoever believes that it leads."""
        for node in list(self.leaders()):
            assert node.raft is not None
            if node.paused_until <= self.now:
                self._value += 1
                self._write(node, [Record(node.raft.epoch, self._value, None)])

    def crash(self, node: Node) -> None:
        if node.raft is None:
            return
        self._log(node, "crash")
        node.raft = None
        node.incarnation += 1
        node.paused_until = 0.0
        node.disk.lose_power(self.chance.choice([0.0, self.chance.random(), 1.0]))
        for source, incarnation, request in node.tokens.values():
            if self.chance.random() < 0.7:  # whoever waits sees its connection close
                gone = Unanswered(node.id, request, is_down=True)
                self._later(self._delay(), self._resume, self.nodes[source], incarnation, gone)
        node.tokens.clear()

    def _crash_some(self) -> None:
        chance = self.chance
        all_at_once = chance.random() < 0.05
        for node in list(self.nodes.values()) if all_at_once else [self._some()]:
            if node.raft is not None:
                self.crash(node)
                self._later(chance.choice([0.01, 0.3, 3.0]) * chance.random(), self._start, node)

    def _pause_some(self) -> None:
        node = self._some()
        node.paused_until = self.now + self.chance.random() * 5.0

    def _cut_some(self) -> None:
        chance = self.chance
        ids = list(self.nodes)
        first = self._some().id
        others = [node for node in ids if node != first]
        side = [first, *chance.sample(others, chance.randint(0, len(others) // 2))]
        both = chance.random() < 0.5
        cut = [(a, b) for a in side for b in ids if b not in side]
        cut += [(b, a) for a, b in cut] if both else []
        if chance.random() < 0.5:
            cut = [(b, a) for a, b in cut]
        self.blocked.update(cut)
        self._log(self.nodes[side[0]], "cut", cut)
        self._later(chance.random() * 5.0, self.blocked.difference_update, cut)

    def _resign_some(self) -> None:
        for node in list(self.leaders()):
            self._step(node, Resign())

    def change_voters(self) -> None:
        """An operator adds a node that does not vote, or removes one that does."""
        for node in list(self.leaders()):
            raft = node.raft
            assert raft is not None
            if node.paused_until > self.now:
                continue
            try:
                voters = self._changed(raft)
            except BrokerError:
                continue
            self._log(node, "change", voters)
            self._write(node, [Record(raft.epoch, 0, voters)])

    def _changed(self, raft: Raft) -> VoterSet:
        voters = raft.voters
        dead = [v.key for v in voters if self._is_impaired(v)]
        spare = [n for n in self.nodes.values() if voters.get(n.id) is None]
        if dead:
            return raft.remove_voter(self.chance.choice(dead))
        if spare and (len(voters) < 3 or self.chance.random() < 0.5):
            return raft.add_voter(self.chance.choice(spare).voter, self.now)
        return raft.remove_voter(self.chance.choice(list(voters)).key)

    def _take_snapshot(self) -> None:
        node = self._some()
        raft, disk = node.raft, node.disk
        if raft is None or node.paused_until > self.now or raft.log.is_installing:
            return
        least = max(disk.start, disk.snapshot.end if disk.snapshot else 0)
        if raft.high_watermark <= least:
            return
        end = self.chance.randint(least + 1, raft.high_watermark)
        if end > disk.synced_end:
            return
        start = self.chance.choice([end, self.chance.randint(disk.start, end)])
        voters = disk.voters_before(end)
        disk.snapshot = SnapshotId(end, disk.records[end - 1 - disk.start].epoch)
        disk.voters = voters
        del disk.records[: start - disk.start]
        disk.start = start
        self._step(node, SnapshotTaken(disk.snapshot, start))

    def _wipe_some(self) -> None:
        """Replace a voter's disk, if the quorum can bear it for good."""
        for leader in self.leaders():
            raft = leader.raft
            assert raft is not None
            node = self._some()
            dead = sum(self._is_impaired(v) for v in raft.voters)
            bearable = dead + 1 <= len(raft.voters) - raft.voters.majority
            if raft.leads and raft.log.are_voters_committed and bearable and not self._is_changing():
                self.crash(node)
                self.wipe(node)
                self._later(self.chance.random(), self._start, node)
            return

    def _is_impaired(self, voter: Voter) -> bool:
        """Whether a voter's disk is another by now, or lacks what it has acknowledged."""
        node = self.nodes[voter.key.id]
        return node.key != voter.key or node.disk.has_lost

    def _rot_some(self) -> None:
        """Let a voter's disk forget what it had synced, if the quorum can bear it."""
        node = self._some()
        leader = next(self.leaders(), None)
        if leader is None or leader.raft is None or self._is_changing():
            return
        voters = leader.raft.voters
        impaired = sum(self._is_impaired(v) for v in voters if v.key.id != node.id)
        if leader.raft.leads and impaired + 1 <= len(voters) - voters.majority:
            self.crash(node)
            self._log(node, "rot")
            node.disk.rot(self.chance.choice([1, 2, 5, 1000]))
            if self.chance.random() < 0.2:  # the note is gone, too
                unknown = Position(node.disk.state.epoch, UNKNOWN_END)
                node.disk.acknowledged = unknown
            self._later(self.chance.random(), self._start, node)

    def _is_changing(self) -> bool:
        sets = {n.raft.voters for n in self.nodes.values() if n.raft is not None}
        return len(sets) > 1 or any(n.raft is None for n in self.nodes.values())

    def wipe(self, node: Node) -> None:
        self._log(node, "wipe")
        directory = f"{node.id}{chr(ord(node.disk.directory[-1]) + 1)}"
        node.disk = Disk(directory, VoterSet())

    # A whole run.

    def story(self, *, faults_seconds: float = 8.0) -> None:
        try:
            self._begin_faults()
            self.run(faults_seconds)
            self.heal()
            self.check_liveness()
            self.check_rejoin()
        except Violation as violation:
            violation.add_note(f"replay: python -m tests.support.raft_cluster {self.seed}")
            raise

    def heal(self) -> None:
        self.is_calm = True
        self.blocked.clear()
        for node in self.nodes.values():
            node.paused_until = min(node.paused_until, self.now)
            self._start(node)

    def serving(self) -> Node | None:
        """The leader, if the quorum serves."""
        for node in self.leaders():
            assert node.raft is not None
            newest = node.raft.epoch == max(n.raft.epoch for n in self.nodes.values() if n.raft)
            if node.raft.leads and newest:
                return node
        return None

    def check_liveness(self) -> None:
        if not self.run(30.0, until=lambda: self.serving() is not None):
            raise Violation("a healed quorum elects a leader", self._describe())
        known = self.invariants.decided
        before = len(known)

        def everybody_knows() -> bool:
            raft_of = [node.raft for node in self.nodes.values() if node.raft is not None]
            written = any(record.value for record in known[before:])
            return written and min(raft.high_watermark for raft in raft_of) == len(known)

        for _ in range(30):  # what one leader took may be lost with it, so write again
            self.write()
            if self.run(1.0, until=everybody_knows):
                return
        raise Violation("a healed quorum commits, and everybody learns it", self._describe())

    def check_rejoin(self) -> None:
        leader = self.serving()
        if leader is None or leader.raft is None or len(leader.raft.voters) < 3:
            return
        self.run(3.0)
        leader = self.serving()
        assert leader is not None and leader.raft is not None
        epoch = leader.raft.epoch
        live = [self.nodes[v.key.id] for v in leader.raft.voters if self.nodes[v.key.id].key == v.key]
        if len(live) <= leader.raft.voters.majority:
            return
        lonely = self.chance.choice([node for node in live if node is not leader])
        cut = [(lonely.id, n) for n in self.nodes] + [(n, lonely.id) for n in self.nodes]
        self.blocked.update(cut)
        self._log(lonely, "cut off")
        self.run(6.0)
        self.blocked.clear()
        self.run(4.0)
        after = self.serving()
        if after is not leader or leader.raft.epoch != epoch:
            raise Violation("an isolated voter that returns disturbs nobody", self._describe())

    def _describe(self) -> str:
        return "\n".join(str(node.raft) for node in self.nodes.values())

    def print_trace(self) -> None:
        for moment, node, *what in self.trace:
            print(f"{moment:9.4f} {node}", *what)


def main() -> None:
    cluster = Cluster(int(sys.argv[1]), trace=True)
    try:
        cluster.story()
    finally:
        cluster.print_trace()


if __name__ == "__main__":
    main()
