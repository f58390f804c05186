"""What a pod's shares amount to over its life."""

from dataclasses import replace

from hami.scheduling.usage import charge_shares, peak_charges, total_charge
from testing.builders import APP, INIT, SIDECAR, charge, share, usage
from testing.cases import cases

A, B = "GPU-A", "GPU-B"


def holds(uuid, memory_mib, cores):
    return (share(uuid, memory_mib, cores),)


TWO_CARDS = (
    [INIT, APP, APP],
    [holds(A, 8000, 20), holds(A, 3000, 10), (share(A, 4000, 10), share(B, 2000, 0))],
)
G8 = ([INIT, APP, APP], [(), holds(A, 2500, 25), holds(B, 2500, 25)])
SIDE = (
    [INIT, SIDECAR, APP, APP],
    [holds(A, 8000, 50), holds(A, 1000, 10), holds(A, 3000, 10), holds(A, 4000, 10)],
)


@cases(
    "pod, init_done, charges",
    ("two cards", TWO_CARDS, False, [charge(A, 2, 8000, 20), charge(B, 1, 2000, 0)]),
    ("after init nothing is dropped", G8, True, [charge(A, 1, 2500, 25), charge(B, 1, 2500, 25)]),
    (
        "two containers on one device",
        ([APP, APP], [holds("GPU-1", 3000, 30), holds("GPU-1", 5000, 20)]),
        False,
        [charge("GPU-1", 2, 8000, 50)],
    ),
    ("6.3 sidecars + max(init, apps)", SIDE, False, [charge(A, 3, 9000, 60)]),
    ("6.3 after init the sidecars stay", SIDE, True, [charge(A, 3, 8000, 30)]),
    (
        "6.3 sidecars add up",
        ([SIDECAR, SIDECAR], [holds(A, 1, 1), holds(A, 2, 2)]),
        False,
        [charge(A, 2, 3, 3)],
    ),
    (
        "largest init by dimension",
        ([INIT, INIT], [holds(A, 9, 1), holds(A, 1, 9)]),
        False,
        [charge(A, 1, 9, 9)],
    ),
    ("nothing but init", ([INIT], [holds(A, 9, 1)]), True, []),
    ("nothing", ([APP], [()]), False, []),
    (
        "sorted",
        ([APP], [(share(B, 1, 1), share(A, 2, 2))]),
        False,
        [charge(A, 1, 2, 2), charge(B, 1, 1, 1)],
    ),
    ("left out empty entries", ([INIT, APP], [holds(A, 1000, 10)]), True, [charge(A, 1, 1000, 10)]),
    ("more entries than containers", ([APP], [(), holds(A, 1, 1)]), False, [charge(A, 1, 1, 1)]),
    ("kinds unknown", ([], [holds(A, 1, 1), holds(A, 2, 2)]), False, [charge(A, 2, 3, 3)]),
)
def test_peak_charges(pod, init_done, charges):
    assert peak_charges(*pod, init_done=init_done) == tuple(charges)


def test_total():
    assert total_charge([charge(A, 3, 8000, 30), charge(B, 1, 2000, 5)]) == (10000, 35, 4)
    assert total_charge([]) == (0, 0, 0)


def test_charge_shares():
    before = (usage(A, 1, 100, 10), usage(B))
    assert charge_shares(before, [share(A, 50, 5), share(A, 1, 0), share("gone", 9, 9)]) == (
        usage(A, 3, 151, 15),
        usage(B),
    )


@cases(
    "taken, over",
    ((10, 46068, 100), False),
    ((11, 0, 0), True),
    ((0, 46069, 0), True),
    ((0, 0, 101), True),
)
def test_over(taken, over):
    assert usage(A, *taken).is_overcommitted is over


class CountedText(str):
    """A text that counts comparisons of all its kind."""

    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        CountedText.comparisons += 1
        return str.__eq__(self, other)


@cases("co_tenants", ("plain", ()), ("with details", ("online",)))
def test_the_time_for_charges_is_linear(co_tenants):
    def comparisons(size):
        CountedText.comparisons = 0
        devices = [CountedText(f"GPU-{n}") for n in range(size)]
        peak_charges(
            [APP], [[replace(share(device, 1, 1), co_tenants=co_tenants) for device in devices]]
        )
        return CountedText.comparisons

    assert comparisons(800) <= 5 * comparisons(200) + 800
