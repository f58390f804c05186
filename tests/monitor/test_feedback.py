"""Who waits for whom, and whose limit counts."""

import math
from itertools import groupby

from hypothesis import given
from hypothesis.strategies import randoms

from hami.monitor.feedback import (
    ACTIVE,
    BLOCKED,
    DENIED_S,
    LIMIT_S,
    MAX_WAIT_S,
    TURN_S,
    FeedbackCandidate,
    decide,
    is_active,
)
from testing.cases import cases


def candidate(key, priority=1, cards="x", active=True, **fields):
    """A container; *cards* are letters."""
    return FeedbackCandidate(
        key=key, priority=priority, cards=frozenset(cards), is_active=active, **fields
    )


@cases(
    "candidates, blocked, limited",
    ("one alone is free", [candidate("a")], "", ""),
    ("the lower waits", [candidate("a", 0), candidate("b", 1)], "b", "b"),
    (
        "nobody waits for one that is idle",
        [candidate("a", 0, active=False), candidate("b", 1)],
        "",
        "",
    ),
    ("another card", [candidate("a", 0, "x"), candidate("b", 1, "y")], "", ""),
    ("one of several cards", [candidate("a", 0, "xy"), candidate("b", 1, "yz")], "b", "b"),
    ("two of a level share", [candidate("a"), candidate("b")], "", "ab"),
    ("one that is idle takes nothing", [candidate("a"), candidate("b", active=False)], "", ""),
    (
        "an idle one later",
        [candidate("a"), candidate("b"), candidate("c", active=False)],
        "",
        "abc",
    ),
    (
        "also before it starts to work",
        [candidate("a", 0), candidate("b", 1, active=False)],
        "b",
        "b",
    ),
    (
        "nobody waits for one that waits",
        [candidate("a", 0, "x"), candidate("b", 1, "xy"), candidate("c", 2, "y")],
        "b",
        "b",
    ),
    ("three levels", [candidate("a", 0), candidate("b", 1), candidate("c", 2)], "bc", "bc"),
    (
        "two of the highest level",
        [candidate("a", 0), candidate("b", 0), candidate("c", 5)],
        "c",
        "abc",
    ),
)
def test_rules(candidates, blocked, limited):
    verdicts = decide(candidates, 100.0)
    assert {key for key, one in verdicts.items() if one.is_blocked} == set(blocked)
    assert {key for key, one in verdicts.items() if one.is_limited} == set(limited)


@cases("before, after", (ACTIVE, 1), (1, 0), (0, 0), (BLOCKED, 0), (-7, 0), (2**31 - 1, 1))
def test_the_word_is_counted_down_and_released(before, after):
    assert decide([candidate("a", recent_kernel=before)], 0.0)["a"].recent_kernel == after


def test_a_limit_stays_for_some_seconds():
    """It counts at once, and no longer after the last sharing and LIMIT_S."""
    two = [candidate("a"), candidate("b")]
    shared_at = decide(two, 10.0)["a"].shared_at
    assert [
        decide([candidate("a", shared_at=shared_at)], 10.0 + later)["a"].is_limited
        for later in (0.0, 1.0, LIMIT_S - 0.1, LIMIT_S, 60.0)
    ] == [True, True, True, False, False]


@cases(
    "fields, active",
    ({"recent_kernel": 2}, True),
    ({"recent_kernel": 1}, False),
    ({"recent_kernel": 0}, False),
    ({"recent_kernel": -1}, False),
    ({"host_sm": 1}, True),
    ({"host_sm": 0}, False),
    ({"recent_kernel": -1, "host_sm": 30}, True),
    ({"last_kernel_time": 999}, True),
    ({"last_kernel_time": 998}, False),
    ({"last_kernel_time": 999, "recent_kernel": -1}, False),
    ({"last_kernel_time": 999, "has_limiter": True}, False),
    ({"last_kernel_time": 2**64 - 1}, False),
    ({"last_kernel_time": 0}, False),
    ({"recent_kernel": 2**31 - 1}, True),
    ({"recent_kernel": 2, "host_sm": 0, "idle_s": DENIED_S - 0.1}, True),
    ({"recent_kernel": 2, "host_sm": 0, "idle_s": DENIED_S}, False),
    ({"last_kernel_time": 999, "host_sm": 0, "idle_s": DENIED_S}, False),
    ({"recent_kernel": 2, "host_sm": 1, "idle_s": 0.0}, True),
)
def test_who_works(fields, active):
    given = {
        "recent_kernel": 0,
        "last_kernel_time": 0,
        "host_sm": None,
        "idle_s": 0.0,
        "has_limiter": False,
        "now": 1000.2,
    } | fields
    assert is_active(**given) is active


def test_a_container_that_waits_gets_turns():
    """However long one of higher priority works."""
    waiting_since, blocked = math.inf, []
    for now in range(300):
        verdict = decide(
            [candidate("a", 0), candidate("b", 1, waiting_since=waiting_since)], float(now)
        )["b"]
        waiting_since = verdict.waiting_since
        blocked.append(verdict.is_blocked)
    turns = [len(list(group)) for is_blocked, group in groupby(blocked) if not is_blocked]
    assert turns == [TURN_S] * int(300 / (MAX_WAIT_S + TURN_S))
    assert blocked[: int(MAX_WAIT_S)] == [True] * int(MAX_WAIT_S)


def test_who_does_not_have_to_wait_any_more_waits_anew():
    first = decide([candidate("a", 0), candidate("b", 1)], 0.0)["b"]
    alone = decide([candidate("b", 1, waiting_since=first.waiting_since)], 50.0)["b"]
    assert alone.waiting_since == math.inf
    again = decide(
        [candidate("a", 0), candidate("b", 1, waiting_since=alone.waiting_since)], 100.0
    )["b"]
    assert again.is_blocked
    assert again.waiting_since == 100.0


def some(rng):
    """Up to a dozen containers on up to four cards."""
    return [
        candidate(
            number,
            rng.randrange(4),
            rng.sample("wxyz", rng.randint(1, 3)),
            rng.random() < 0.6,
            recent_kernel=rng.randint(-1, 2),
            shared_at=rng.choice((-1e9, 99.0)),
        )
        for number in range(rng.randint(0, 12))
    ]


@given(rng=randoms(use_true_random=True))
def test_a_container_waits_exactly_while_one_of_higher_priority_works(rng):
    """So none starves: the highest that works never waits, and nobody waits for one that waits."""
    candidates = some(rng)
    verdicts = decide(candidates, 100.0)
    assert verdicts.keys() == {one.key for one in candidates}
    works = [one for one in candidates if one.is_active and not verdicts[one.key].is_blocked]
    for one in candidates:
        higher = [
            other for other in works if other.priority < one.priority and other.cards & one.cards
        ]
        assert verdicts[one.key].is_blocked is bool(higher)
    highest = min((one.priority for one in candidates if one.is_active), default=None)
    assert not any(verdicts[one.key].is_blocked for one in candidates if one.priority == highest)
    assert bool(works) is any(one.is_active for one in candidates)


@given(rng=randoms(use_true_random=True))
def test_a_limit_counts_exactly_while_a_card_is_shared(rng):
    candidates = some(rng)
    verdicts = decide(candidates, 100.0)
    works = [one for one in candidates if one.is_active and not verdicts[one.key].is_blocked]
    for one in candidates:
        level = [other for other in works if other.priority == one.priority]
        shares = any(sum(card in other.cards for other in level) > 1 for card in one.cards)
        recently = one.shared_at > 100.0 - LIMIT_S
        assert verdicts[one.key].is_limited is (shares or verdicts[one.key].is_blocked or recently)


@given(rng=randoms(use_true_random=True))
def test_a_container_that_ends_frees_the_others_at_once(rng):
    """Without those that worked at the highest level, the next one works."""
    candidates = some(rng)
    highest = min((one.priority for one in candidates if one.is_active), default=0)
    left = [one for one in candidates if one.priority != highest]
    verdicts = decide(left, 100.0)
    second = min((one.priority for one in left if one.is_active), default=0)
    assert not any(verdicts[one.key].is_blocked for one in left if one.priority == second)


@given(rng=randoms(use_true_random=True))
def test_the_order_does_not_matter(rng):
    candidates = some(rng)
    shuffled = rng.sample(candidates, len(candidates))
    assert decide(candidates, 100.0) == decide(shuffled, 100.0)


def test_two_levels_in_turn_over_many_rounds():
    """The higher works in bursts of three seconds: the lower waits exactly then, a round later at most."""
    lower_waits = []
    word = 0
    for second in range(60):
        higher_works = second // 3 % 2 == 0
        verdict = decide(
            [candidate("high", 0, active=higher_works), candidate("low", 1, recent_kernel=word)],
            float(second),
        )["low"]
        word = verdict.recent_kernel
        lower_waits.append((verdict.is_blocked, higher_works))
    assert all(waits == works for waits, works in lower_waits)
