"""Which devices are linked best."""

import itertools

import numpy
from hypothesis import given
from hypothesis.strategies import randoms

from hami.scheduling.topology import best_linked


def some_links(rng, places):
    """Links among so many devices, mostly the same both ways."""
    links = numpy.array(
        [[rng.choice((0, 10, 50, 100)) for _ in range(places)] for _ in range(places)]
    )
    return numpy.triu(links, 1) + numpy.triu(links, 1).T


def strength(links, choice):
    return sum(links[a, b] for a, b in itertools.combinations(choice, 2))


@given(rng=randoms(use_true_random=True))
def test_the_first_of_the_best_sets(rng):
    links = some_links(rng, places := rng.randint(2, 7))
    count = rng.randint(2, places)
    assert best_linked(links, count) == max(
        itertools.combinations(range(places), count), key=lambda c: strength(links, c)
    )


@given(rng=randoms(use_true_random=True))
def test_one_alone_is_missed_least(rng):
    links = some_links(rng, 5)
    (alone,) = best_linked(links, 1)
    assert links[alone].sum() == links.sum(axis=1).min()


def test_a_good_set_among_too_many():
    board = numpy.arange(64) // 8
    links = numpy.where(board[:, None] == board, 100, 10) * (1 - numpy.eye(64, dtype=int))
    assert len(set(board[list(best_linked(links, 8))])) == 1
    assert len(set(best_linked(links, 33))) == 33
