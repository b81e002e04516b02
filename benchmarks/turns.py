"""The longest turns of the loop that metadata of very many partitions costs.

A broker that leads 20,000 partitions is fenced. Every node decides, applies or acts on that in
batches; an idle node heartbeats, and takes a snapshot of its metadata. A node that has installed
one compares everything, and a client asks for the metadata of all topics. The clock counts CPU time
of each turn, in this process, on the machines' own code and without any I/O.

The limit is the same work over all partitions at once: what a turn would cost if it were not cut.
The target of any turn is 2 ms. (`tests/simulation/test_turns.py` counts the work of whole nodes.)
"""

import gc
from collections.abc import Callable, Iterator
from functools import partial
from time import process_time
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

from benchmarks.bench import Bench, Steps
from benchmarks.report import Measured, Report, Result, result
from tidelog.controller import elections
from tidelog.controller.controller import Controller
from tidelog.controller.difference import Difference, Differences
from tidelog.controller.image import ClusterImage
from tidelog.controller.records import (
    BrokerRegistered,
    BrokerUnfenced,
    MetadataRecord,
    PartitionState,
    TopicCreated,
)
from tidelog.controller.snapshot import encode_snapshot, encode_topic
from tidelog.kafka.described_topics import DescribedTopics
from tidelog.model import Endpoint
from tidelog.wire.apis import Api
from tidelog.wire.slices import Encoded, response_in_slices

NAME: Final = "turns"
TARGET: Final = "2 ms"
PARTITIONS: Final = 20_000
PER_TOPIC: Final = 100
METADATA_VERSION: Final = 12

DONE: Final = object()

T = TypeVar("T")

DECIDE, APPLY, ACT = "decide", "apply", "find what to act on"
SNAPSHOT = "encode a snapshot of which nothing has changed"
WHOLE = "compare all partitions with a snapshot that was installed"
ANSWER = "encode the metadata of all topics for a client"


def run(bench: Bench) -> Report:
    measured = Measured()
    with Steps(NAME, bench.rounds) as steps:
        for _ in range(bench.rounds):
            steps.begin(f"{PARTITIONS} partitions")
            _round(measured)
    results: list[Result] = [
        result(
            NAME,
            f"a broker of {PARTITIONS} partitions is fenced: {stage}",
            measured.of((stage, "longest")),
            "ms",
            limits=measured.of((stage, "whole")),
            limit_name="in one turn",
            target=TARGET,
        )
        for stage in (DECIDE, APPLY, ACT)
    ]
    results.append(
        result(
            NAME,
            SNAPSHOT,
            measured.of((SNAPSHOT, "longest")),
            "ms",
            limits=measured.of((SNAPSHOT, "whole")),
            limit_name="all topics anew",
            target=TARGET,
        )
    )
    results += [
        result(
            NAME,
            case,
            measured.of((case, "longest")),
            "ms",
            limits=measured.of((case, "whole")),
            limit_name="in one turn",
            target=TARGET,
        )
        for case in (WHOLE, ANSWER)
    ]
    return Report(title="the longest turn of the loop, in CPU time", results=results)


def _round(measured: Measured) -> None:
    image = _image()
    changed = _timed(measured, (SNAPSHOT, "whole"), lambda: encode_snapshot(image))
    for topic in image.topics.values():
        encode_topic(topic)
    assert _timed(measured, (SNAPSHOT, "longest"), lambda: encode_snapshot(image)) == changed
    controller = Controller(cluster_id="bench", min_in_sync=elections.min_in_sync())
    controller.begin(image, 0.0, 1)
    controller.gone(1, image.brokers[1].broker_epoch)
    differences = Differences(2)
    differences.whole(image)
    gc.freeze()  # as a node does once it has started
    turns: dict[str, list[float]] = {DECIDE: [], APPLY: [], ACT: []}
    turns[WHOLE] = _slices(Differences(2).whole_in_slices(lambda: image, Difference()))
    turns[ANSWER] = _slices(_metadata(image))
    end = 1
    while controller.deadline(image, 0.1) in (float("-inf"), 0.1):
        records = _turn(turns[DECIDE], partial(controller.due, image, 0.1))
        _turn(turns[APPLY], partial(_apply, image, records))
        _turn(turns[ACT], partial(differences.after, image, records))
        end += len(records)
        controller.applied(image, records, end)
    for stage, seconds in turns.items():
        measured.add((stage, "longest"), 1000 * max(seconds))
        measured.add((stage, "whole"), 1000 * sum(seconds))


def _slices(work: Iterator[None]) -> list[float]:
    """How long each turn of the work takes."""
    seconds: list[float] = []
    while _turn(seconds, partial(next, work, DONE)) is not DONE:
        """Others would have their turn."""
    return seconds


def _metadata(image: ClusterImage) -> Iterator[None]:
    """A client's first request for all topics, turn by turn."""
    described = DescribedTopics()
    topics: list[Encoded] = []
    for topic in image.topics.values():
        describing = described.describe(image, topic, METADATA_VERSION)
        try:
            while True:
                describing.send(None)
                yield
        except StopIteration as ended:
            topics.append(ended.value)
    yield from response_in_slices(Api.METADATA, METADATA_VERSION, {"topics": topics})


def _image() -> ClusterImage:
    image = ClusterImage()
    at = Endpoint(host="127.0.0.1", port=9)
    for node in (1, 2, 3):
        image.apply(
            BrokerRegistered(
                node=node,
                incarnation="i",
                broker_epoch=node,
                directory=f"d{node}",
                kafka=at,
                peer=at,
                http=None,
                rack=None,
            )
        )
        image.apply(BrokerUnfenced(node=node, broker_epoch=node))
    for number in range(PARTITIONS // PER_TOPIC):
        topic_id: UUID = uuid4()
        states = [
            PartitionState(cluster_id, (1, 2, 3), (1, 2, 3), 1, 1)
            for cluster_id in image.free_cluster_ids(topic_id, 0, PER_TOPIC)
        ]
        image.apply(
            TopicCreated(
                name=f"t{number}", id=str(topic_id), replicas=[[1, 2, 3]] * PER_TOPIC, partitions=states
            )
        )
    return image


def _apply(image: ClusterImage, records: list[MetadataRecord]) -> None:
    for record in records:
        image.apply(record)


def _turn(seconds: list[float], work: Callable[[], T]) -> T:
    began = process_time()
    found = work()
    seconds.append(process_time() - began)
    return found


def _timed(measured: Measured, name: Any, work: Callable[[], T]) -> T:
    seconds: list[float] = []
    found = _turn(seconds, work)
    measured.add(name, 1000 * seconds[0])
    return found
