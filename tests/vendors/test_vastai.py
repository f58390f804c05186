"""What Vastai does beyond the table of all vendors."""

import pytest

from hami.model import NodePolicy
from testing.builders import node, share, usage
from testing.cases import cases
from tests.vendors.rows_vastai import VASTAI, die, dies


def held(*uuids):
    return tuple(share(uuid, 0, 0, "Vastai") for uuid in uuids)


FOUR = dies("1", "1", "2", "3")


@cases(
    "usages, placement, score",
    ("a free die beside a used one", FOUR, (held("d1", "d0"),), 1),
    ("two cards", FOUR, (held("d1", "d2"),), 0.5),
    ("containers add up", FOUR, (held("d0"), (), held("d2", "d3")), 1.5),
    ("a die without a card", [*FOUR, die("e", None)], (held("d0"), held("e")), 0),
    ("no die", [usage("d0", info={"AIC": "1"})], (held("d0"),), 0),
    (
        "another strategy",
        [usage("d0", info={"AIC": "1", "DeviceStrategy": "full"})],
        (held("d0"),),
        0,
    ),
    ("a card that is no text", [die("d0", 1)], (held("d0"),), 0),
)
@pytest.mark.parametrize("policy", NodePolicy)
def test_node_score_is_higher_where_dies_share_a_card(usages, placement, score, policy):
    assert VASTAI.decision.node_score(usages, placement, policy) == score


def test_devices_count_100_cores_whatever_is_registered():
    text = '[{"id":"d0","count":1,"devmem":16384,"type":"Vastai","health":true,"custominfo":{"AIC":"7"}}]'
    (device,) = VASTAI.decision.inventory(
        VASTAI, node("n", annotations={"hami.io/node-va-register": text})
    )
    assert (device.cores, device.info, device.vendor) == (100, {"AIC": "7"}, "Vastai")
