"""The monitor: what containers really use of their devices, as metrics, and who has priority."""
