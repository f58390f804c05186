"""What namespaces have used, in a day or a window."""

from hypothesis import given
from hypothesis import strategies as st

from hami.codec.gpu_hours import window_of
from hami.codec.usage_sums import DAY_S, HeldAmounts, UsageDay, UsageKey
from hami.scheduling.gpu_hours import day_shares, window_shares

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


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=9), st.data())
def test_within_a_window_the_use_never_becomes_less(shares, data):
    """So what was read last may hold a pod back as long as its window lasts."""
    days = {MONDAY + number * DAY_S: {"team": share} for number, share in enumerate(shares)}
    first = data.draw(st.integers(0, len(shares) - 1))
    then = {start: shares for start, shares in days.items() if start <= MONDAY + first * DAY_S}
    window = window_of("week", MONDAY)
    assert window_shares(then, window)["team"] <= window_shares(days, window)["team"]
    assert window_shares(days, window)["team"] == sum(shares[:7])
