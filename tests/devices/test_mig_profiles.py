"""Allowed MIG profiles, and the number of instances that fit on a card."""

import pytest

from hami.codec.device_config import MigAllowance
from hami.codec.mig import most_instances
from hami.devices.mig_profiles import allowed_profiles
from hami.model import MigProfile, Partition
from testing.cards import ALLOWLIST, HALF, SMALL, WHOLE

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


@pytest.mark.parametrize(
    "allowlist, names",
    [
        pytest.param(allow("1g.10gb"), {"1g.10gb": "1g.10gb"}, id="by its name"),
        pytest.param(allow("1g.20gb"), {"1g.20gb": "1g.20gb"}, id="a variant by its name"),
        pytest.param(
            allow("7g.79gb"),
            {"7g.80gb": "7g.79gb"},
            id="by its slices, with the configuration's name",
        ),
        pytest.param(allow("1g.5gb"), {"1g.10gb": "1g.5gb"}, id="by its slices, without suffix"),
        pytest.param(allow("2g.20gb"), {}, id="not offered"),
        pytest.param(allow("1g.10gb", models=("H100",)), {}, id="another model"),
        pytest.param(
            allow("1g.10gb", models=("SXM4",)) + allow("3g.40gb"),
            {"1g.10gb": "1g.10gb"},
            id="the first entry",
        ),
        pytest.param((), {}, id="no list"),
        pytest.param(
            ALLOWLIST,
            {"1g.10gb": "1g.10gb", "3g.40gb": "3g.40gb", "7g.80gb": "7g.79gb"},
            id="the chart's names",
        ),
    ],
)
def test_allowed_profiles(allowlist, names):
    found = allowed_profiles("NVIDIA A100-SXM4-80GB", OFFERED, allowlist)
    assert {name: profile.name for name, profile in found.items()} == names


@pytest.mark.parametrize(
    "profiles, most",
    [
        ((), 0),
        ((SMALL,), 7),
        ((HALF,), 2),
        ((WHOLE,), 1),
        ((LARGE_SMALL,), 2),
        ((WHOLE, HALF, SMALL), 7),
    ],
    ids=["none", "small", "halves", "whole", "variant", "several"],
)
def test_most_instances_do_not_overlap(profiles, most):
    assert most_instances(profiles) == most
