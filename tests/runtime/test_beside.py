"""A computation in another process."""

import os
import subprocess
import sys
import threading

from hami.runtime.beside import Beside
from testing.cases import cases

PROGRAM = """
import os
from hami.runtime.beside import Beside

parent = os.getpid()

def compute():
    is_other = os.getpid() != parent
    {}
    return is_other, os.getppid() == parent

print(*Beside(compute).result())
"""


@cases(
    "more, printed",
    ("in another process", "", "True True"),
    ("that dies: in this one", "if is_other: os._exit(1)", "False False"),
)
def test_it_computes(more, printed):
    """In a process of its own: that of the tests may have threads."""
    command = [sys.executable, "-c", PROGRAM.format(more)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == printed


def test_beside_other_threads_it_computes_here():
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    try:
        assert Beside(os.getpid).result() == os.getpid()
    finally:
        ends.set()
        thread.join()
