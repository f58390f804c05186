"""A computation in another process."""

import os
import threading

from hami.runtime.beside import Beside


def test_it_computes_in_another_process():
    parent = os.getpid()
    assert Beside(lambda: (os.getpid() != parent, os.getppid() == parent)).result() == (True, True)


def test_a_process_that_dies_is_replaced_by_this_one():
    parent = os.getpid()

    def compute():
        if os.getpid() != parent:
            os._exit(1)
        return "here"

    assert Beside(compute).result() == "here"


def test_beside_other_threads_it_computes_here():
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    try:
        assert Beside(os.getpid).result() == os.getpid()
    finally:
        ends.set()
        thread.join()
