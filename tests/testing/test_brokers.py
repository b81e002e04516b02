"""Brokers in processes of their own, by the calls that the users of a `BrokerManager` have."""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cluster import is_process, wait_until
from tidelog.faces.local.layout import State
from tidelog.testing import Broker, BrokerManager, NotInTime, NotRunning, StartFailed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def manager() -> Iterator[BrokerManager]:
    with BrokerManager(count=3, leader=2) as manager:
        yield manager


@pytest.fixture(autouse=True)
def whole(request: pytest.FixtureRequest) -> None:
    """Every test begins with three brokers that run."""
    if "manager" in request.fixturenames:
        request.getfixturevalue("manager").start_all()


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)


def test_a_manager_starts_brokers_that_form_a_cluster(manager):
    leader = manager.wait_for_leader()

    status = manager.status()
    assert [one.state for one in status.values()] == [State.RUNNING] * 3
    assert [one.id for one in status.values() if one.is_leader] == [leader]
    assert len({one.pid for one in status.values()} | {os.getpid()}) == 4
    for broker in manager:
        assert len(get(f"{broker.url}/v1/cluster")["brokers"]) == 3


def test_when_the_leader_is_killed_another_leads_and_it_comes_back(manager):
    leader = manager.wait_for_leader()
    pid = manager[leader].pid

    manager.kill(leader)

    assert manager.status()[leader].state is State.KILLED
    assert manager[leader].status().exit_code == -signal.SIGKILL
    assert manager.wait_for_leader() != leader
    manager.restart(leader)
    assert manager[leader].pid not in (pid, None)
    manager.wait_in_sync()


def test_a_broker_that_is_paused_is_silent_until_it_goes_on(manager):
    manager.pause(1)
    assert manager.status()[1].state is State.PAUSED
    assert manager[1].is_alive

    manager.resume(1)
    assert manager.status()[1].state is State.RUNNING
    manager.wait_for_leader()


def test_what_cannot_be_is_refused(manager):
    with pytest.raises(StartFailed, match="runs already"):
        manager.start(1)
    with pytest.raises(KeyError, match="there is no broker 9"):
        manager.kill(9)
    with pytest.raises(ValueError, match="one for each"):
        BrokerManager(count=3, ports=[8001])
    with pytest.raises(ValueError, match="there can be 1 to 9"):
        BrokerManager(count=0)


def test_a_broker_that_dies_by_itself_has_failed(manager):
    os.kill(manager[3].pid, signal.SIGKILL)
    assert manager[3].wait_ended() == -signal.SIGKILL

    assert manager[3].state is State.FAILED
    with pytest.raises(NotRunning, match="broker 3 is failed; start it first"):
        manager.stop(3)


def test_the_calls_of_the_seed():
    def come_up(broker: Broker) -> None:
        broker.start_http_server()
        broker.start_cluster_tasks(proxy_url="http://127.0.0.1:8000")

    threads = threading.active_count()
    brokers = [Broker(broker_id=1, is_leader=True), Broker(broker_id=2, is_leader=False)]
    urls = [broker.url for broker in brokers]
    try:
        for broker in brokers:
            broker.set_peer_urls(urls)
            broker.set_follower_urls(url for url in urls if url != broker.url)
        for broker in brokers:
            starting = threading.Thread(target=come_up, args=(broker,))
            starting.start()
            starting.join()  # a broker does not end with the thread that has started it
            assert get(f"{broker.url}/health/ready")
        assert [broker.state for broker in brokers] == [State.RUNNING] * 2
        with pytest.raises(StartFailed, match="before it starts"):
            brokers[0].set_peer_urls([])

        brokers[1].stop_cluster_tasks()
        brokers[1].stop_http_server()
        assert brokers[1].status().exit_code == 0
        assert brokers[1].state is State.STOPPED
    finally:
        for broker in brokers:
            broker.close()
    assert not any(broker.is_alive or broker.data.exists() for broker in brokers)
    assert threading.active_count() == threads
    with pytest.raises(ValueError, match="no Broker of this process"):
        Broker.set_peer_urls(brokers[0], ["http://127.0.0.1:1"])


def test_a_broker_that_cannot_start_says_why(tmp_path):
    (tmp_path / "data").write_text("a file, no directory")
    broker = Broker(data=tmp_path / "data")
    try:
        with pytest.raises(StartFailed, match=r"broker 1 ended with exit code \d+ before"):
            broker.start()
        assert broker.state is State.FAILED
    finally:
        broker.close()


def test_one_of_three_is_not_ready_alone():
    brokers = [Broker(number) for number in (1, 2, 3)]
    try:
        for broker in brokers:
            broker.join(brokers)
        with pytest.raises(NotInTime, match="more than half"):
            brokers[0].start(seconds_max=0.01)
        assert brokers[0].is_alive
    finally:
        for broker in brokers:
            broker.close()


def test_no_broker_outlives_the_process_that_started_it(tmp_path):
    code = (
        "from tidelog.testing import Broker\n"
        f"broker = Broker(data={str(tmp_path / 'data')!r})\n"
        "broker.start(wait=False)\n"
        "print(broker.pid, flush=True)\n"
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    pid = int(done.stdout)
    wait_until(lambda: not is_process(pid), "the broker runs on")
