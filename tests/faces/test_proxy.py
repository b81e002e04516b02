"""A proxy in a process of its own, over two clusters of one real node each."""

import signal
import subprocess
import sys
from contextlib import contextmanager

import httpx

from tidelog.faces.compatibility.proxy.placing import Places
from tidelog.testing import Cluster


@contextmanager
def proxy_over(*clusters):
    """Where it listens, and its process."""
    arguments = [part for cluster in clusters for part in ("--cluster", cluster.http)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tidelog.faces.cli", "proxy", "--listen", "127.0.0.1:0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("ready http=127.0.0.1:"), ready
        with httpx.Client(base_url=f"http://{ready.split('=')[1].split()[0]}", timeout=20) as http:
            yield http, process
    finally:
        process.kill()
        process.communicate()


def post(http, path, **body):
    answer = http.post(path, json=body)
    assert answer.status_code < 300, answer.text
    return answer.json()


def test_two_clusters_serve_as_one_and_fail_apart():
    with Cluster(nodes=1) as one, Cluster(nodes=1) as other, proxy_over(one, other) as (http, process):
        queues = [post(http, "/create_queue")["queue_id"] for _ in range(4)]
        assert {queue % 2 for queue in queues} == {0, 1}
        for queue in queues:
            for value in ("first", {"second": queue}):
                post(http, "/append", queue_id=queue, value=value)
        for queue in queues:
            read = [post(http, "/read", queue_id=queue, client_id="ada") for _ in range(3)]
            assert [found["value"] for found in read] == ["first", {"second": queue}, None]
        assert sorted(post(http, "/get_all_queues")["queue_ids"]) == sorted(queues)
        pointers = post(http, "/get_all_pointers")["pointers"]
        assert {pointer["queue_id"] for pointer in pointers} == set(queues)

        again = {"idempotency-key": "once"}
        made = {http.post("/create_queue", json={}, headers=again).text for _ in range(3)}
        assert len(made) == 1

        names = [f"jobs-{number}" for number in range(6)]
        for name in names:
            assert http.put(f"/v1/queues/{name}", json={}).status_code == 201
            post(http, f"/v1/queues/{name}/messages", messages=[{"value": name}])
        assert http.get("/v1/queues").json()["queues"] == names
        for name in names:
            (message,) = post(http, f"/v1/queues/{name}/receive")["messages"]
            assert message["value"] == name
            post(http, f"/v1/queues/{name}/ack", receipts=[message["receipt"]])

        other[1].kill()
        assert_only_its_own_fail(http, queues, names)
        other[1].start()
        wait_until_whole(http)
        for queue in queues:
            post(http, "/append", queue_id=queue, value="again")

        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=10)
        assert (process.returncode, "Traceback" in errors) == (0, False), errors


def assert_only_its_own_fail(http, queues, names):
    for queue in queues:
        answer = http.post("/append", json={"queue_id": queue, "value": 1})
        assert answer.status_code == (503 if queue % 2 else 200), answer.text
    places = Places(2, 2)
    assert {places.of_name(name) for name in names} == {0, 1}
    for name in names:
        status = http.get(f"/v1/queues/{name}").status_code
        assert status == (503 if places.of_name(name) else 200)
    listed = post(http, "/get_all_queues")
    assert listed["unavailable"] == [1]
    assert all(queue % 2 == 0 for queue in listed["queue_ids"])
    health = http.get("/health/ready")
    assert (health.status_code, health.json()["status"]) == (200, "degraded")


def wait_until_whole(http):
    while http.get("/health/ready").json()["status"] != "ready":
        pass
