"""A decision as tests want it: the choice, or why there is none."""

from hami.model import NodePolicy


def decide(verdicts, asked, names, policy=NodePolicy.BINPACK):
    """The best of the nodes *names* that fits, or why none fits."""
    rows = verdicts.rows(names)
    return verdicts.choose(asked, rows, policy) or verdicts.refuse(asked, names, rows)
