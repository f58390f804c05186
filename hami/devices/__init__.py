"""The cards of a node: NVML, MIG, mock cards, health, inventory."""
