import itertools
import socket

import pytest

from tidelog.faces.local import layout
from tidelog.faces.local.layout import ClusterFile, LayoutError, plan, quorum_size

NO_PORTS = {"kafka": None, "http": None, "peer": None}


def planned(known=None, nodes=None, *, taken=(), **ports):
    return plan(
        known,
        nodes,
        NO_PORTS | ports,
        is_free=lambda port: port not in taken,
        free_ports=itertools.count(20000),
    )


def ports_of(content: ClusterFile, kind: str) -> list[int]:
    return [int(getattr(entry, kind).rpartition(":")[2]) for entry in content.nodes]


@pytest.mark.parametrize(
    ("nodes", "voters"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (6, 5), (7, 7), (8, 7), (20, 7)]
)
def test_the_quorum_is_an_odd_number_of_nodes_and_at_most_seven(nodes, voters):
    content, _ = planned(nodes=nodes)

    assert quorum_size(nodes) == voters
    assert content.voters == set(range(1, voters + 1))
    assert len(content.nodes) == nodes


def test_nodes_have_consecutive_ports_from_the_defaults_on():
    content, notes = planned()

    assert ports_of(content, "kafka") == [9092, 9093, 9094]
    assert ports_of(content, "http") == [8080, 8081, 8082]
    assert content.quorum == "1@127.0.0.1:9192,2@127.0.0.1:9193,3@127.0.0.1:9194"
    assert notes == []


def test_port_0_picks_free_ports_for_that_kind():
    content, _ = planned(nodes=2, kafka=0, peer=7000)

    assert ports_of(content, "kafka") == [20000, 20001]
    assert ports_of(content, "peer") == [7000, 7001]
    assert ports_of(content, "http") == [8080, 8081]


def test_http_gives_way_when_nobody_asked_for_its_port_and_says_so():
    content, notes = planned(taken={8081})
    asked, no_notes = planned(taken={8081}, http=8080)

    assert ports_of(content, "http") == [20000, 20001, 20002]
    assert "--http-port" in notes[0]
    assert ports_of(asked, "http") == [8080, 8081, 8082] and no_notes == []


def test_the_next_start_takes_the_same_nodes_and_ports():
    before, _ = planned(nodes=5, kafka=0, http=0, peer=0)

    again, notes = planned(before, taken={8080, 9092})

    assert again == before and notes == []


def test_ports_that_are_given_count_and_others_stay():
    before, _ = planned()

    again, _ = planned(before, kafka=7000)

    assert ports_of(again, "kafka") == [7000, 7001, 7002]
    assert ports_of(again, "http") == ports_of(before, "http")


def test_nodes_that_come_later_follow_the_quorum_that_is_there():
    before, _ = planned(nodes=3)

    more, _ = planned(before, 5, taken={9096})

    assert more.quorum == before.quorum
    assert ports_of(more, "kafka") == [9092, 9093, 9094, 9095, 20000]


def test_a_quorum_of_one_among_several_nodes_is_said():
    assert any("node 1 alone" in text for text in planned(nodes=2)[1])
    assert planned(nodes=1)[1] == planned(nodes=3)[1] == []


def test_fewer_nodes_than_there_are_is_refused():
    before, _ = planned(nodes=3)

    with pytest.raises(LayoutError, match="3 nodes"):
        planned(before, 1)


@pytest.mark.parametrize(
    ("ports", "expected"), [({"kafka": 9092, "http": 9093}, "overlap"), ({"kafka": 65534}, "no room")]
)
def test_ports_that_overlap_or_end_are_refused(ports, expected):
    with pytest.raises(LayoutError, match=expected):
        planned(nodes=3, **ports)


def test_the_file_says_what_was_written_and_is_replaced_whole(tmp_path):
    content, _ = planned()
    assert layout.read(tmp_path) is None

    layout.write(tmp_path, content)
    content.nodes[1].pid = 17
    layout.write(tmp_path, content)

    assert layout.read(tmp_path) == content
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]


@pytest.mark.parametrize("text", ["", "{", '{"quorum": 7}', "[]"])
def test_a_damaged_file_is_named_with_what_to_do(tmp_path, text):
    (tmp_path / "cluster.json").write_text(text)

    with pytest.raises(LayoutError, match=r"damaged.*remove it"):
        layout.read(tmp_path)


def test_a_single_nodes_directory_is_refused(tmp_path):
    layout.check_directory(tmp_path)
    (tmp_path / "meta.properties").touch()

    with pytest.raises(LayoutError, match="NODES=1"):
        layout.check_directory(tmp_path)


def test_free_ports_are_free_and_differ():
    ports = list(itertools.islice(layout.some_free_ports(), 50))

    assert len(set(ports)) == 50 and all(port in layout.FREE_PORTS for port in ports)


def test_a_port_that_somebody_listens_on_is_not_free():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()

        assert not layout.is_port_free(taken.getsockname()[1])
    assert not layout.is_port_free(70000)


def test_a_node_is_started_with_its_place_in_the_cluster(tmp_path):
    content, _ = planned(nodes=4)

    options = layout.options(content, content.nodes[3], tmp_path)

    given = dict(zip(options[::2], options[1::2], strict=True))
    assert given["--node-id"] == "4" and given["--peer"] == "127.0.0.1:9195"
    assert given["--data"] == str(tmp_path / "node-4")
    assert given["--quorum"].count("@") == 3
