"""Whatever happens to messages, what is said of a queue is what going through it would find."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.queues.records import DEAD, MAIN, About, Delivery, Settings
from tidelog.queues.work import State, WorkQueue
from tidelog.shards.effects import Moment

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "take", "given", "back", "gone", "settle", "move", "due"]),
        st.integers(0, 5),
    ),
    max_size=60,
)


def counted(queue, lane):
    states = [job.state for job in queue.jobs.values() if job.lane == lane]
    return {
        "ready": sum(one in (State.READY, State.BLOCKED) for one in states),
        "delayed": states.count(State.DELAYED),
        "in_flight": sum(one in (State.GIVING, State.GIVEN, State.SETTLING) for one in states),
    }


def step(queue, what, number, at):
    jobs = list(queue.jobs.values())
    job = jobs[number % len(jobs)] if jobs else None
    match what:
        case "add":
            about = About(key=f"k-{number % 2}", not_before_ms=at.wall_ms + 50 * (number % 3))
            sequence = queue.take_sequence()
            queue.stored(sequence, sequence, about, at.wall_ms, at)
        case "take":
            queue.take(number % 2, 2)
        case "due":
            for one in queue.due(at):
                queue.release(one, at)
        case "given" if job is not None and job.state is State.GIVING:
            queue.given(job, queue.delivery(job, 100), at)
        case "settle" if job is not None and job.state is State.GIVEN:
            queue.settle(job)
        case "back" if job is not None and job.state in (State.GIVING, State.SETTLING):
            queue.put_back(job, Delivery(job.offset, job.count, job.lane), at)
        case "move" if job is not None and job.state in (State.GIVING, State.SETTLING):
            queue.put_back(job, queue.to_lane(job, DEAD if job.lane == MAIN else MAIN), at)
        case "gone" if job is not None:
            queue.gone(job.sequence)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, is_ordered=st.booleans())
def test_what_is_said_of_a_queue_is_what_is_in_it(steps, is_ordered):
    queue = WorkQueue("q", Settings(is_ordered=is_ordered))
    for moment, (what, number) in enumerate(steps):
        step(queue, what, number, Moment(moment / 10, 1000 + 100 * moment))

        for lane in (MAIN, DEAD):
            found = queue.counts(lane, 100_000)
            made = [job.made_ms for job in queue.jobs.values() if job.lane == lane]
            oldest_ms = found.pop("oldest_ms")
            assert found == counted(queue, lane)
            assert oldest_ms == (100_000 - min(made) if made else 0)
