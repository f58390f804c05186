"""The cards of a node: NVML, MIG, mock, health, inventory."""
