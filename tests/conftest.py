"""Hypothesis runs the same examples every time (``--hypothesis-profile=deep`` looks for new ones), and logging is
restored after each test.

``--fewer-examples`` is for the second and each further Python on one machine: what an example shows depends on the
code and hardly on the interpreter. All tests run, those with random input on a part of the examples, except those with
the mark ``files``, which read the files of the project.
"""

import logging
from collections import defaultdict

import pytest
from hypothesis import settings

settings.register_profile("same", deadline=None, derandomize=True, database=None)
settings.register_profile("deep", deadline=None, max_examples=2000, database=None)
settings.register_profile("few", settings.get_profile("same"), max_examples=15)
settings.load_profile("same")

SEED, EVERY = "seed", 7
"""A parameter with this name numbers random examples; ``--fewer-examples`` keeps the first of so many."""
LOGGERS = (None, "hami", "gunicorn", "kubernetes", "urllib3", "werkzeug")


def pytest_addoption(parser):
    parser.addoption("--fewer-examples", action="store_true",
                     help=f"run every {EVERY}th seed, 15 instead of 100 examples of Hypothesis, and no test of files")


def pytest_configure(config):
    if config.getoption("fewer_examples"):
        settings.load_profile("few")


def pytest_collection_modifyitems(config, items):
    if config.getoption("fewer_examples"):
        left_out = set(superfluous(items))
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def superfluous(items):
    """Yields the tests with the mark ``files``, and those that differ from another only in the seed, except the first
    and then every seventh of them."""
    siblings = defaultdict(list)
    for item in items:
        if item.get_closest_marker("files"):
            yield item
            continue
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if SEED in parameters:
            others = [id(value) for name, value in parameters.items() if name != SEED]
            siblings[item.parent, item.originalname, *others].append(item)
    for same in siblings.values():
        yield from (item for number, item in enumerate(same) if number % EVERY)


@pytest.fixture(autouse=True)
def restore_logging():
    """Restores handlers and levels."""
    handlers, levels = logging.getLogger().handlers[:], {name: logging.getLogger(name).level for name in LOGGERS}
    yield
    logging.getLogger().handlers[:] = handlers
    for name, level in levels.items():
        if logging.getLogger(name).level != level:  # to set it would clear the caches of all loggers
            logging.getLogger(name).setLevel(level)
