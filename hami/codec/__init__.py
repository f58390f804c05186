"""Converts text and JSON to records and back. Wire names belong here, scheduling rules do not."""
