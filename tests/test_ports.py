"""Ports of the programs beside a test: several test processes start theirs at the same time."""

import random
import subprocess
import sys

from testing import processes
from testing.processes import free_port

ASK = (
    "import random, sys; random.sample = lambda ports, count: [int(port) for port in sys.argv[1:]]; "
    "from testing.processes import free_port; print(free_port())"
)


def test_no_port_is_given_out_twice_by_processes_that_live(monkeypatch):
    candidates = random.sample(range(*processes.SERVER_PORTS), 20)
    monkeypatch.setattr(random, "sample", lambda ports, count: candidates)
    mine = [free_port(), free_port()]
    output = subprocess.run(
        [sys.executable, "-c", ASK, *map(str, candidates)], capture_output=True, check=True
    )
    assert len({*mine, int(output.stdout)}) == 3


def test_claims_do_not_fill_the_process(monkeypatch):
    monkeypatch.setattr(processes, "MAX_CLAIMS", len(processes._claims) + 2)
    for _ in range(4):
        free_port()
    assert len(processes._claims) == processes.MAX_CLAIMS
