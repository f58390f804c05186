"""A decision as tests want it: the choice, or why there is none."""

from hami.model import NodePolicy
from hami.scheduling.decide import choose_node, refusals


def decide(verdicts, asked, names, policy=NodePolicy.BINPACK):
    """The best of the nodes *names* that fits, or why none fits."""
    return choose_node(verdicts, asked, names, policy) or refusals(verdicts, asked, names)
