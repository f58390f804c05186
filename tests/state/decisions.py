"""A decision as tests want it: the choice, or why there is none."""

from hami.model import NodePolicy
from hami.scheduling.node_order import NodeOrder


def decide(verdicts, asked, names, policy=NodePolicy.BINPACK, **order):
    """The best of the nodes *names* that fits, or why none fits."""
    rows = verdicts.rows(names)
    return verdicts.choose(asked, rows, NodeOrder(policy, **order)) or verdicts.refuse(
        asked, names, rows
    )
