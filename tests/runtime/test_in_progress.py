"""What is being done, as others see it."""

import queue
import threading
import time

from e2e.eventually import eventually
from hami.runtime.in_progress import LATELY_S, InProgress


def test_it_is_lately_until_some_time_after_the_last_end():
    placing = InProgress()
    assert not placing.is_lately()
    with placing:
        with placing:
            pass
        time.sleep(1.2 * LATELY_S)
        assert placing.is_lately()
    assert placing.is_lately()
    time.sleep(1.2 * LATELY_S)
    assert not placing.is_lately()


def test_waiting_ends_with_a_timeout():
    placing, begun = InProgress(), time.monotonic()
    placing.wait_for_end(0.02)
    assert 0.02 <= time.monotonic() - begun < 5
    with placing:
        pass  # nobody waits any more


def test_an_end_wakes_the_thread_that_has_waited_longest():
    placing, woken = InProgress(), queue.SimpleQueue()

    def wait(number):
        placing.wait_for_end(60)
        woken.put(number)

    threads = []
    for number in range(3):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        eventually(lambda: len(placing._waiting) == number + 1, "it waits")
    for number in range(3):
        assert woken.empty()
        with placing:
            pass
        assert woken.get(timeout=20) == number
    for thread in threads:
        thread.join(20)


def test_ends_and_waits_of_many_threads_do_not_disturb_each_other():
    placing = InProgress()

    def do():
        for _ in range(300):
            with placing:
                pass
            placing.wait_for_end(0.0001)

    threads = [threading.Thread(target=do) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    time.sleep(1.2 * LATELY_S)
    assert not placing.is_lately()
