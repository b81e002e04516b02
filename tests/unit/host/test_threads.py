import asyncio
import threading

from tidelog.host import Lane, ThreadOffload


def test_idle_work_is_done_in_a_thread_of_its_own_in_order():
    async def work() -> list[str]:
        offload = ThreadOffload()
        try:
            name = lambda: threading.current_thread().name  # noqa: E731
            return [await offload.run(name, Lane.IDLE) for _ in range(3)]
        finally:
            offload.close()

    assert asyncio.run(work()) == ["idle-0"] * 3
