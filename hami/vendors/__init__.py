"""Vendors as values: one record for each, with functions only where data is not enough."""
