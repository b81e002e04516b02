"""What a node tells whoever started it."""

import socket

import pytest

from tidelog.faces.notify import fields_of, listening, notifier


def test_a_supervisor_hears_what_its_process_says():
    listener, address = listening()
    with listener:
        notify = notifier({"NOTIFY_SOCKET": address})
        assert notify is not None

        notify("READY=1\nSTATUS=serving")

        assert fields_of(listener.recv(1024)) == {"READY": "1", "STATUS": "serving"}


def test_a_socket_may_have_a_file(tmp_path):
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        notify = notifier({"NOTIFY_SOCKET": path})
        assert notify is not None

        notify("STATUS=waiting for 1 of 3 voters: 2")

        assert fields_of(listener.recv(1024)) == {"STATUS": "waiting for 1 of 3 voters: 2"}


def test_a_supervisor_that_listens_no_more_is_no_trouble():
    listener, address = listening()
    notify = notifier({"NOTIFY_SOCKET": address})
    listener.close()
    assert notify is not None

    notify("READY=1")


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}])
def test_without_a_supervisor_nobody_is_told(environment):
    assert notifier(environment) is None
