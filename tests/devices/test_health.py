"""XIDs that make a card unhealthy."""

import pytest

from hami.devices.health import parse_xid_rules
from hami.errors import MalformedInput
from testing.cases import cases

IGNORED = (13, 31, 43, 45, 68, 109)
FATAL = (48, 63, 74, 79, 95)


@cases(
    "disable, enable, critical, ignored",
    ("upstream's list", "", "", FATAL, IGNORED),
    ("more are ignored", "48, 79", "", (74,), (*IGNORED, 48, 79)),
    ("all are ignored", "all", "", (), (*IGNORED, *FATAL)),
    ("xids means all", "79,xids", "", (), (*IGNORED, *FATAL)),
    ("enabled overrides upstream's list", "", "13,31", (*FATAL, 13, 31), (43, 45)),
    ("enabled overrides disabled", "79", "79", (79,), IGNORED),
    ("one enabled, all disabled", "all", "79", (79,), (*IGNORED, 48, 74)),
    ("all are enabled", "all", "ALL", (*FATAL, *IGNORED), ()),
)
def test_critical_xids(disable, enable, critical, ignored):
    rules = parse_xid_rules({"DP_DISABLE_HEALTHCHECKS": disable, "DP_ENABLE_HEALTHCHECKS": enable})
    assert [xid for xid in critical if not rules.is_critical(xid)] == []
    assert [xid for xid in ignored if rules.is_critical(xid)] == []


@cases(
    "disable, enable, off",
    ("", "", False),
    ("all", "", True),
    ("all", "79", False),
    ("all", "all", False),
    ("79", "", False),
)
def test_health_is_not_watched_only_if_all_xids_are_ignored(disable, enable, off):
    rules = parse_xid_rules({"DP_DISABLE_HEALTHCHECKS": disable, "DP_ENABLE_HEALTHCHECKS": enable})
    assert rules.is_off is off


@cases(
    "variable, text",
    ("DP_DISABLE_HEALTHCHECKS", "79,abc"),
    ("DP_ENABLE_HEALTHCHECKS", "xids"),
    ("DP_ENABLE_HEALTHCHECKS", "-1"),
)
def test_a_malformed_xid_is_refused_with_the_name_of_the_variable(variable, text):
    with pytest.raises(MalformedInput, match=variable):
        parse_xid_rules({variable: text})
