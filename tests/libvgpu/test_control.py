"""The compute limit in simulated time: GPU time, whatever the kernels look like, whoever else is on the card."""

import enum
import subprocess

import pytest

from testing.cases import cases

WORKLOADS = ("flood", "sync", "decode", "mixed", "onoff", "medium")
MOST_OF = {"decode": 85.7}  # percent that the workload can use at all


class Samples(enum.IntEnum):
    """Utilization that a monitor writes."""

    NONE = 0
    EXACT = 1
    NVML = 2


@pytest.fixture(scope="module")
def simulate(builds):
    """Mean, mean error, worst excess and seconds to settle of each container."""
    program = builds.program("simulate")

    def run(workload, *limits, processes=None, samples=Samples.EXACT, sms=132):
        words = [workload, processes or len(limits), len(limits), int(samples), sms, *limits]
        done = subprocess.run(
            [program, *map(str, words)], capture_output=True, text=True, check=True
        )
        return [tuple(map(float, line.split())) for line in done.stdout.splitlines()]

    return run


@cases("samples", ("monitor", Samples.EXACT), ("no-monitor", Samples.NONE))
@pytest.mark.parametrize("limit", [10, 30, 50, 70, 90])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_one_process_gets_its_share(simulate, workload, limit, samples):
    for sms in (46, 132, 188):
        ((mean, error, worst, settled),) = simulate(workload, limit, samples=samples, sms=sms)
        due = min(limit, MOST_OF.get(workload, 100))
        assert abs(mean - due) <= 1.5
        assert error <= 3 + abs(limit - due)
        assert worst <= 8
        assert settled <= 3


@cases("samples", ("monitor", Samples.EXACT), ("no-monitor", Samples.NONE))
@pytest.mark.parametrize("period", range(2, 34))
def test_pattern_of_launches_is_not_taken_for_one_of_its_kernels(simulate, period, samples):
    """One launch of 2 ms, the others 0.1 ms: which of them are measured must not depend on their order."""
    ((mean, *_),) = simulate(period, 30, samples=samples)
    assert abs(mean - 30) <= 2


@pytest.mark.parametrize("workload", ["flood", "sync", "decode", "mixed", "medium"])
def test_two_tenants_get_thirty_and_seventy(simulate, workload):
    thirty, seventy = simulate(workload, 30, 70, sms=188)
    assert abs(thirty[0] - 30) <= 3
    assert abs(seventy[0] - 70) <= 3


@pytest.mark.parametrize("limits", [(50, 50), (30, 70), (20, 30, 50)], ids=str)
def test_samples_of_a_driver_do_not_move_what_is_measured_right(simulate, limits):
    """Each sample is of one process only: what a few of them say by chance must not count."""
    errors = [
        error
        for sms in range(1, 9)
        for _, error, *_ in simulate("flood", *limits, samples=Samples.NVML, sms=sms)
    ]
    assert sum(errors) / len(errors) <= 1.5


@pytest.mark.parametrize("limits", [(50, 50), (30, 70), (20, 30, 50)], ids=str)
@pytest.mark.parametrize("workload", ["sync", "mixed", "medium"])
def test_samples_of_a_driver_mend_what_is_measured_wrong(simulate, workload, limits):
    """Without samples, they get 8 to 25 points less than their limits."""
    runs = [simulate(workload, *limits, samples=Samples.NVML, sms=sms) for sms in range(1, 9)]
    found = [mean - limit for run in runs for (mean, *_), limit in zip(run, limits, strict=True)]
    assert abs(sum(found) / len(found)) <= 2
    assert sum(map(abs, found)) / len(found) <= 5


@pytest.mark.parametrize("workload", ["flood", "sync", "mixed", "medium"])
def test_three_tenants(simulate, workload):
    shares = [
        mean / limit
        for (mean, *_), limit in zip(simulate(workload, 20, 30, 50), (20, 30, 50), strict=True)
    ]
    assert (
        sum(shares) ** 2 / (3 * sum(share**2 for share in shares)) >= 0.99
    )  # Jain's index of fairness


@pytest.mark.parametrize("workload", ["flood", "sync", "decode", "mixed", "medium"])
def test_four_processes_of_a_container_share_one_limit(simulate, workload):
    ((mean, *_),) = simulate(workload, 30, processes=4)
    assert abs(mean - 30) <= 3


@pytest.mark.parametrize("workload", ["flood", "sync", "decode", "mixed", "medium"])
def test_without_a_monitor_nobody_gets_more(simulate, workload):
    for (mean, *_), limit in zip(
        simulate(workload, 30, 70, samples=Samples.NONE), (30, 70), strict=True
    ):
        assert mean <= limit + 3


def test_no_limit_waits_for_nothing(simulate):
    assert simulate("flood", 100)[0][0] > 99


@pytest.mark.parametrize("workload", WORKLOADS)
def test_sanitizers_find_nothing_in_the_law(builds, workload):
    program = builds.program("simulate", "asan")
    for words in (
        ("1", "1", "1", "132", "30"),
        ("2", "2", "1", "188", "30", "70"),
        ("2", "2", "2", "188", "30", "70"),
        ("4", "1", "0", "46", "10"),
    ):
        done = subprocess.run(
            [program, workload, *words], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("variant", ["plain", "asan"])
def test_what_a_container_writes_into_its_bucket_overflows_nothing(builds, variant):
    program = builds.program("broken_bucket", variant)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
