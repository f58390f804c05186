"""Hypothesis runs the same examples every time, and new ones with ``--hypothesis-profile=nightly``. Logging is restored
after each test."""

import logging

import pytest
from hypothesis import HealthCheck, settings

from testing import interrupts

SOME = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.filter_too_much, HealthCheck.too_slow],
}
settings.register_profile("reproducible", derandomize=True, database=None, **SOME)
settings.register_profile("nightly", derandomize=False, max_examples=2000, **SOME)
settings.load_profile("reproducible")


def pytest_configure():
    interrupts.interrupt_pytest()


LOGGERS = (None, "hami", "gunicorn", "kubernetes", "urllib3", "werkzeug")


@pytest.fixture(autouse=True)
def restore_logging():
    """Restores handlers and levels."""
    handlers, levels = (
        logging.getLogger().handlers[:],
        {name: logging.getLogger(name).level for name in LOGGERS},
    )
    yield
    logging.getLogger().handlers[:] = handlers
    for name, level in levels.items():
        if (
            logging.getLogger(name).level != level
        ):  # to set it would clear the caches of all loggers
            logging.getLogger(name).setLevel(level)
