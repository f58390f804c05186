"""What namespaces have used in a day."""

from hami.codec.usage_sums import HeldAmounts, UsageDay, UsageKey
from hami.scheduling.gpu_hours import day_shares

MONDAY = 1_795_996_800  # 2026-11-30


def test_the_shares_of_a_day_are_those_of_all_keys_of_a_namespace():
    hours = {
        UsageKey("a", "NVIDIA", "A40", "", "dra"): {
            0: HeldAmounts(share=1),
            5: HeldAmounts(share=2),
        },
        UsageKey("a", "NVIDIA", "A10", "high", "dra"): {0: HeldAmounts(share=4)},
        UsageKey("b", "NVIDIA", "A10", "", "dra"): {0: HeldAmounts(share=8)},
    }
    assert day_shares(UsageDay(start=MONDAY, hours=hours)) == {"a": 7, "b": 8}
