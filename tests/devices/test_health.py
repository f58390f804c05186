"""Which XIDs make a card unusable."""

import pytest

from hami.errors import MalformedInput
from hami.devices.health import parse_xid_rules

IGNORED = (13, 31, 43, 45, 68, 109)
FATAL = (48, 63, 74, 79, 95)


@pytest.mark.parametrize("disable, enable, counts, ignores", [
    pytest.param("", "", FATAL, IGNORED, id="upstream's list"),
    pytest.param("48, 79", "", (74,), (*IGNORED, 48, 79), id="more are ignored"),
    pytest.param("all", "", (), (*IGNORED, *FATAL), id="all are ignored"),
    pytest.param("79,xids", "", (), (*IGNORED, *FATAL), id="xids is another word for all"),
    pytest.param("", "13,31", (*FATAL, 13, 31), (43, 45), id="what is enabled goes before upstream's list"),
    pytest.param("79", "79", (79,), IGNORED, id="what is enabled goes before what is disabled"),
    pytest.param("all", "79", (79,), (*IGNORED, 48, 74), id="one is enabled though all are disabled"),
    pytest.param("all", "ALL", (*FATAL, *IGNORED), (), id="all are enabled"),
])
def test_which_xids_count(disable, enable, counts, ignores):
    rules = parse_xid_rules({"DP_DISABLE_HEALTHCHECKS": disable, "DP_ENABLE_HEALTHCHECKS": enable})
    assert [xid for xid in counts if not rules.is_critical(xid)] == []
    assert [xid for xid in ignores if rules.is_critical(xid)] == []


@pytest.mark.parametrize("disable, enable, off", [
    ("", "", False), ("all", "", True), ("all", "79", False), ("all", "all", False), ("79", "", False),
])
def test_nobody_listens_only_if_no_xid_counts(disable, enable, off):
    rules = parse_xid_rules({"DP_DISABLE_HEALTHCHECKS": disable, "DP_ENABLE_HEALTHCHECKS": enable})
    assert rules.is_off is off


@pytest.mark.parametrize("variable, text", [
    ("DP_DISABLE_HEALTHCHECKS", "79,abc"), ("DP_ENABLE_HEALTHCHECKS", "xids"), ("DP_ENABLE_HEALTHCHECKS", "-1"),
])
def test_what_is_no_xid_is_refused_with_the_variable_s_name(variable, text):
    with pytest.raises(MalformedInput, match=variable):
        parse_xid_rules({variable: text})
