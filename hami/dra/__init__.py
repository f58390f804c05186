"""Dynamic Resource Allocation: the driver of a node, and claims in place of the amounts that pods request."""
