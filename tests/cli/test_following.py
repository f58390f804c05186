"""``explain -w``: what is printed again, and what is waited for."""

import json
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from hami.cli import main
from hami.cli.following import LONGEST_S, PAUSE_S, PodWatch, follow
from hami.errors import ClusterError, HamiError
from testing.cases import cases


def followed(*answers):
    """Follows documents, the last of which ends it as Ctrl-C does. Returns how often each wait was called."""
    left = list(answers)
    waits = []

    def wait():
        waits.append(left[0])
        left.pop(0)
        if not left:
            raise KeyboardInterrupt

    follow(lambda: (left[0], f"text {left[0]}"), wait)
    return waits


@cases(
    "answers, printed",
    (({"a": 1}, {"a": 1}), 1),
    (({"a": 1}, {"a": 2}), 2),
    (({"a": 1}, {"a": 2}, {"a": 1}), 3),
    (({"ageSeconds": 1, "a": 1}, {"ageSeconds": 2, "a": 1}), 1),
    (({"events": [1], "a": [{"boundSeconds": 1}]}, {"events": [2], "a": [{"boundSeconds": 2}]}), 1),
)
def test_what_is_said_already_is_not_printed_again(answers, printed, capsys):
    assert len(followed(*answers)) == len(answers)
    assert capsys.readouterr().out.count("text") == printed


def test_a_pod_that_is_gone_ends_it(capsys):
    def explain():
        raise HamiError('pods "x" not found in namespace team')

    with pytest.raises(HamiError, match="not found"):
        follow(explain, pytest.fail)


def answering(*answers):
    """Follows answers, of which errors are raised, and the last ends it as Ctrl-C does."""
    left = list(answers)

    def explain():
        if isinstance(left[0], Exception):
            raise left[0]
        return left[0], f"text {left[0]}"

    def wait():
        left.pop(0)
        if not left:
            raise KeyboardInterrupt

    follow(explain, wait)


def made_from(error):
    """The error in a user's words, as the reader of the cluster raises it."""
    made = HamiError("the API server does not answer")
    made.__cause__ = error
    return made


@cases(
    "error",
    (ClusterError("GET /: 503", 503),),
    (ClusterError("GET /: 429", 429),),
    (made_from(ClusterError("GET /: connection refused")),),
)
def test_an_api_server_that_does_not_answer_for_a_while_is_asked_again(error, capsys):
    answering({"a": 1}, error, error, {"a": 1}, {"a": 2})
    out, err = capsys.readouterr()
    assert out.count("text") == 2
    assert err == f"{error}; trying again\n"


@cases(
    "answers",
    ((ClusterError("GET /: 503", 503),),),
    (({"a": 1}, ClusterError("GET /: 403", 403)),),
    (({"a": 1}, made_from(ClusterError("GET /: 401", 401))),),
    (({"a": 1}, HamiError("pods x not found")),),
)
def test_other_errors_and_the_first_one_end_it(answers):
    with pytest.raises(HamiError):
        answering(*answers)


class Streams:
    """Watches with these versions, one after the other. ``None``: it cannot be opened."""

    def __init__(self, *watches):
        self.watches, self.asked, self.read = list(watches), [], 0

    @contextmanager
    def __call__(self, path, query):
        self.asked.append((path, query["fieldSelector"]))
        versions = self.watches.pop(0)
        if versions is None:
            raise ClusterError("403", 403)
        yield self._lines(versions)

    def _lines(self, versions):
        for version in versions:
            self.read += 1
            yield json.dumps({"object": {"metadata": {"resourceVersion": version}}}).encode()


@cases(
    "watches, read",
    ("the first event is the pod as it is", [["1", "2", "3"]], [2]),
    ("a change between two watches", [["1"], ["2", "3"]], [1, 2]),
    ("no change, until the watch ends", [["1"], ["1"]], [1, 2]),
)
def test_it_waits_for_a_change_of_the_pod(watches, read):
    streams, pauses = Streams(*watches), []
    watch = PodWatch(streams, "team", "train", pause=pauses.append)
    for expected in read:
        watch.wait()
        assert streams.read == expected
    assert pauses == [PAUSE_S] * len(read)
    assert set(streams.asked) == {("/api/v1/namespaces/team/pods", "metadata.name=train")}


def test_a_pod_that_cannot_be_watched_is_explained_again_after_a_while():
    pauses = []
    PodWatch(Streams(None), "team", "train", pause=pauses.append).wait()
    assert pauses == [PAUSE_S, LONGEST_S]


@cases(
    "options, text",
    (["-o", "json"], "-w shows text"),
    (["--snapshot=x"], "a snapshot does not change"),
)
def test_only_text_of_a_cluster_is_followed(options, text):
    result = CliRunner().invoke(main, ["explain", "train", "-n", "team", "-w", *options])
    assert result.exit_code == 2
    assert text in result.stderr
