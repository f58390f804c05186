"""Hypothesis runs the same examples every time (``--hypothesis-profile=deep`` looks for new ones), and logging is
restored after each test.
"""

import logging

import pytest
from hypothesis import settings

settings.register_profile("same", deadline=None, derandomize=True, database=None)
settings.register_profile("deep", deadline=None, max_examples=2000, database=None)
settings.load_profile("same")

LOGGERS = (None, "hami", "gunicorn", "kubernetes", "urllib3", "werkzeug")


@pytest.fixture(autouse=True)
def restore_logging():
    """Restores handlers and levels."""
    handlers, levels = logging.getLogger().handlers[:], {name: logging.getLogger(name).level for name in LOGGERS}
    yield
    logging.getLogger().handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
