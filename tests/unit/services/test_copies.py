"""What a node keeps for copies outside of the cluster."""

from tests.unit.broker.node import Node, on_a_node
from tidelog.services.services import Services


def test_what_is_left_of_snapshots_is_swept_away_and_none_that_is_being_made(monkeypatch):
    async def story(node: Node) -> None:
        copies, disk = Services(node.broker).copies, node.broker.host.disk
        directory = node.broker.root / "views"
        disk.make_directory(directory)
        for name in ("left.copy", "left.copy-journal", "made.copy", "made.copy-journal", "kv.db"):
            disk.open(directory / name, create=True)
        copies._taking.add("made.copy")
        listed = disk.list

        def list_while_another_begins(path):
            copies._taking.add("next.copy")
            disk.open(directory / "next.copy", create=True)
            return listed(path)

        monkeypatch.setattr(disk, "list", list_while_another_begins)

        copies._sweep(directory)

        assert sorted(listed(directory)) == ["kv.db", "made.copy", "made.copy-journal", "next.copy"]

    on_a_node(story)
