"""The kubelet's side of Dynamic Resource Allocation: offers the cards of a node as devices, and prepares claims."""
