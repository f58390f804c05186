"""Hypothesis runs the same examples every time; ``--hypothesis-profile=deep`` looks for new ones."""

from hypothesis import settings

settings.register_profile("same", deadline=None, derandomize=True, database=None)
settings.register_profile("deep", deadline=None, max_examples=2000, database=None)
settings.load_profile("same")
