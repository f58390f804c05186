"""The node's half for NVIDIA cards: registers them, hands slices to containers, and says when that is done."""
