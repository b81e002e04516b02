import json
import os
import socket
import threading

import pytest

from tidelog.faces.local.control import ControlRefused, NotRunning, ask, socket_path
from tidelog.faces.local.layout import ClusterFile, NodeEntry, State
from tidelog.faces.local.supervisor import Child, Supervisor, describe_exit, last_line, process_state


@pytest.mark.parametrize(
    ("code", "told"), [(0, "ended"), (74, "ended with exit code 74"), (-9, "was ended by SIGKILL")]
)
def test_an_end_is_told_in_words(code, told):
    assert describe_exit(code) == told


def test_the_last_thing_a_node_said_is_found(tmp_path):
    path = tmp_path / "node-1.log"
    assert last_line(path) == "it said nothing"

    path.write_bytes(b"x" * 9000 + b"\nwhy it \xff failed\n\n")

    assert last_line(path) == "why it \ufffd failed"


def test_the_kernel_knows_how_a_process_is():
    assert process_state(os.getpid()) in "RSD"
    assert process_state(2**22 + 1) == "X"


def test_without_a_cluster_the_commands_say_how_to_start_one(tmp_path):
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(NotRunning, match="tidelog cluster up"):
            ask(directory, "kill", 1)


@pytest.mark.parametrize(
    ("answer", "error"),
    [(b'{"problem": "no"}\n', ControlRefused), (b"", NotRunning)],
    ids=["refused", "gone"],
)
def test_a_socket_works_however_deep_its_directory_is(tmp_path, answer, error):
    directory = tmp_path / ("d" * 100) / ("e" * 100)
    directory.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server:
        with socket_path(directory) as path:
            server.bind(path)
        server.listen()

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                asked = json.loads(connection.recv(1000))
                assert asked == {"command": "kill", "node": 2, "wait": False}
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(error):
            ask(directory, "kill", 2)
        thread.join()


@pytest.mark.parametrize(("code", "state"), [(0, State.STOPPED), (74, State.FAILED)])
def test_a_node_that_ends_in_order_was_asked_to_and_has_not_failed(tmp_path, code, state):
    entry = NodeEntry(id=1, kafka="h:1", http="h:2", peer="h:3", state=State.RUNNING)
    said: list[str] = []
    supervisor = Supervisor(tmp_path, ClusterFile(quorum="1@h:3", nodes=[entry]), said.append)

    supervisor.child_ended(Child(supervisor, entry), code)

    assert entry.state is state
    assert "tidelog cluster start 1" in said[0]
