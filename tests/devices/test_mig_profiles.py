"""Allowed MIG profiles, and the number of instances that fit on a card."""

from hami.codec.device_config import MigAllowance
from hami.codec.mig import most_instances
from hami.devices.mig_profiles import allowed_profiles
from hami.model import MigProfile, Partition
from testing.cards import ALLOWLIST, HALF, SMALL, WHOLE
from testing.cases import cases

LARGE_SMALL = MigProfile(
    name="1g.20gb",
    memory_mib=19968,
    cores=15,
    slices=1,
    placements=(Partition(0, 2), Partition(2, 2)),
)
OFFERED = (SMALL, HALF, WHOLE, LARGE_SMALL)


def allow(*profiles, models=("A100",)):
    return (MigAllowance(models, profiles),)


@cases(
    "allowlist, names",
    ("by its name", allow("1g.10gb"), {"1g.10gb": "1g.10gb"}),
    ("a variant by its name", allow("1g.20gb"), {"1g.20gb": "1g.20gb"}),
    ("by its slices, with the configuration's name", allow("7g.79gb"), {"7g.80gb": "7g.79gb"}),
    ("by its slices, without suffix", allow("1g.5gb"), {"1g.10gb": "1g.5gb"}),
    ("not offered", allow("2g.20gb"), {}),
    ("another model", allow("1g.10gb", models=("H100",)), {}),
    (
        "the first entry",
        allow("1g.10gb", models=("SXM4",)) + allow("3g.40gb"),
        {"1g.10gb": "1g.10gb"},
    ),
    ("no list", (), {}),
    (
        "the chart's names",
        ALLOWLIST,
        {"1g.10gb": "1g.10gb", "3g.40gb": "3g.40gb", "7g.80gb": "7g.79gb"},
    ),
)
def test_allowed_profiles(allowlist, names):
    found = allowed_profiles("NVIDIA A100-SXM4-80GB", OFFERED, allowlist)
    assert {name: profile.name for name, profile in found.items()} == names


@cases(
    "profiles, most",
    ("none", (), 0),
    ("small", (SMALL,), 7),
    ("halves", (HALF,), 2),
    ("whole", (WHOLE,), 1),
    ("variant", (LARGE_SMALL,), 2),
    ("several", (WHOLE, HALF, SMALL), 7),
)
def test_most_instances_do_not_overlap(profiles, most):
    assert most_instances(profiles) == most
