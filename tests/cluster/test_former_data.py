"""Today's code on the data of earlier versions: everything is there, and goes on from there."""

import tarfile
from pathlib import Path

import pytest

from tests.cluster.former_data import RECORDS, SETTINGS, check, pay, read, write
from tests.support.node import NodeProcess
from tidelog.client import Client

ARCHIVES = sorted((Path(__file__).parent / "former").glob("*.tar.xz"))


def test_there_is_data_of_an_earlier_version():
    assert ARCHIVES


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.partition(".tar")[0])
def test_what_an_earlier_version_wrote_is_served_and_written_on(tmp_path, archive):
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    with NodeProcess(tmp_path / "data", dict(SETTINGS)) as node:
        check(node)

        assert node.stop() == 0
        node.start()
        check(node)

        pay(node, "former", commit=True)
        assert len(read(node, "payments", 1)) == 3 * RECORDS
        with Client(f"http://{node.http}") as client:
            received = client.queue("mails").receive(max=100)
            assert [message.value["to"] for message in received] == [4, 5, 6, 7, 8, 9]
            client.kv("settings").put("key 1", {"version": 3})
            entry = client.kv("settings").get("key 1")
            assert entry is not None
            assert entry.value == {"version": 3}


def test_the_check_sees_what_is_missing(tmp_path):
    with NodeProcess(tmp_path / "data", dict(SETTINGS)) as node:
        write(node)
        with Client(f"http://{node.http}") as client:
            client.kv("settings").delete("key 1")

        with pytest.raises(AssertionError):
            check(node)
