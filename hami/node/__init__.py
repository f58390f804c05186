"""Everything that a container on the node is given: grants, CDI specifications, host files; and the node's pods."""
