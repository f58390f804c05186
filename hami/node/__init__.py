"""What a container on the node is given: grants, CDI specifications, host files, and the pods of the node."""
