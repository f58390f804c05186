"""What XIDs ask for, and which of them make a card unhealthy."""

import csv
from pathlib import Path

import pytest

from hami.devices.xids import XidKind, parse_xid_rules, xid_kind
from hami.errors import MalformedInput

CATALOG = {
    int(row["xid"]): row["immediate action"]
    for row in csv.DictReader(
        Path(__file__).with_name("xids.csv").read_text().splitlines(), delimiter=";"
    )
}
"""NVIDIA's catalog: the sheet of 2025-10-29."""
KINDS = {
    "RESET_GPU": XidKind.RESET,
    "RESTART_BM": XidKind.RESET,
    "RESTART_VM": XidKind.RESET,
    "WORKFLOW_XID_48": XidKind.RESET,
    "WORKFLOW_NVLINK_ERR": XidKind.RESET,
    "WORKFLOW_NVLINK5_ERR": XidKind.RESET,
    "RESTART_APP": XidKind.APPLICATION,
    "CHECK_UVM": XidKind.APPLICATION,
    "IGNORE": XidKind.LOG,
    "WORKFLOW_XID_45": XidKind.LOG,
    "XID_154": XidKind.LOG,
    "UPDATE_SWFW": XidKind.LOG,
    "CHECK_MECHANICALS": XidKind.LOG,
    "CONTACT_SUPPORT": XidKind.UNKNOWN,
    "": XidKind.UNKNOWN,
}
APPLICATION = (13, 31, 43, 45, 68, 94, 63, 154, 8, 69)
FATAL = (46, 48, 62, 64, 74, 79, 95, 109, 119, 144, 158)


@pytest.mark.parametrize("xid", CATALOG)
def test_an_xid_asks_for_what_the_catalog_says(xid):
    assert xid_kind(xid) is KINDS[CATALOG[xid]]


@pytest.mark.parametrize("xid", [0, 173, 999])
def test_an_xid_that_the_catalog_lacks_is_unknown(xid):
    assert xid_kind(xid) is XidKind.UNKNOWN


@pytest.mark.parametrize(
    "disable, enable, critical, ignored",
    [
        pytest.param("", "", FATAL, (*APPLICATION, 142, 170), id="the catalog"),
        pytest.param("48, 79", "", (74,), (*APPLICATION, 48, 79), id="more are ignored"),
        pytest.param("all", "", (), (*APPLICATION, *FATAL), id="all are ignored"),
        pytest.param("79,xids", "", (), (*APPLICATION, *FATAL), id="xids means all"),
        pytest.param("", "13,31", (*FATAL, 13, 31), (43, 45), id="enabled overrides the catalog"),
        pytest.param("79", "79", (79,), APPLICATION, id="enabled overrides disabled"),
        pytest.param("all", "79", (79,), (*APPLICATION, 48, 74), id="one enabled, all disabled"),
        pytest.param("all", "ALL", (*FATAL, *APPLICATION), (), id="all are enabled"),
    ],
)
def test_critical_xids(disable, enable, critical, ignored):
    rules = parse_xid_rules({"DP_DISABLE_HEALTHCHECKS": disable, "DP_ENABLE_HEALTHCHECKS": enable})
    assert [xid for xid in critical if not rules.is_critical(xid)] == []
    assert [xid for xid in ignored if rules.is_critical(xid)] == []


@pytest.mark.parametrize(
    "disable, enable, off",
    [
        ("", "", False),
        ("all", "", True),
        ("all", "79", False),
        ("all", "all", False),
        ("79", "", False),
    ],
)
def test_health_is_not_watched_only_if_all_xids_are_ignored(disable, enable, off):
    rules = parse_xid_rules({"DP_DISABLE_HEALTHCHECKS": disable, "DP_ENABLE_HEALTHCHECKS": enable})
    assert rules.is_off is off


@pytest.mark.parametrize(
    "variable, text",
    [
        ("DP_DISABLE_HEALTHCHECKS", "79,abc"),
        ("DP_ENABLE_HEALTHCHECKS", "xids"),
        ("DP_ENABLE_HEALTHCHECKS", "-1"),
    ],
)
def test_a_malformed_xid_is_refused_with_the_name_of_the_variable(variable, text):
    with pytest.raises(MalformedInput, match=variable):
        parse_xid_rules({variable: text})
