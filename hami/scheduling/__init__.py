"""The scheduling decision: a pod's request, the fit on a node, the choice of a node. No I/O, no clock, no logging."""
