"""Log lines."""

import io
import json
import logging
import shlex
import sys

from hami.errors import ClusterError
from hami.runtime import logs
from testing.cases import cases


def record(message="bound", *args, error=None, **extra):
    trouble = (type(error), error, error.__traceback__) if error else None
    made = logging.LogRecord(
        "hami.scheduler.verbs", logging.INFO, "verbs.py", 1, message, args, trouble
    )
    vars(made).update(extra)
    made.created = 1787306400.0421
    return made


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


def test_a_line_is_time_level_logger_message_and_the_fields_as_given():
    line = logs.LineFormatter("text").format(record("bound", pod="default/a", node="n1", cores=30))
    assert line == (
        "time=2026-08-21T10:00:00.042Z level=info logger=hami.scheduler.verbs message=bound "
        "pod=default/a node=n1 cores=30"
    )


@cases(
    "value, text",
    ("plain", "plain"),
    ("n-1.a/b:c,d", "n-1.a/b:c,d"),
    ("für", "für"),
    ("two words", '"two words"'),
    ("", '""'),
    ('say "x"', '"say \\"x\\""'),
    ("a=b", '"a=b"'),
    ("back\\slash", '"back\\\\slash"'),
    ("a\nb", '"a\\nb"'),
    ("\x1b[31m", '"\\u001b[31m"'),
    ("a\x85b\u2028c", '"a\\u0085b\\u2028c"'),
    (3, "3"),
    (1.5, "1.5"),
    (True, "true"),
    (None, "null"),
    (["a", 1], '"[\\"a\\",1]"'),
    ([1, 2], "[1,2]"),
    ({"k": 1}, '"{\\"k\\":1}"'),
    (ClusterError("no way"), '"no way"'),
)
def test_values_are_quoted_when_needed(value, text):
    assert logs.LineFormatter("text").format(record(value=value)).partition(" value=")[2] == text


def test_message_arguments_are_filled_in():
    assert 'message="took 3 of 5"' in logs.LineFormatter("text").format(
        record("took %d of %d", 3, 5)
    )


def test_a_field_cannot_pass_for_the_time_or_the_logger():
    line = logs.LineFormatter("text").format(record(time="now", logger="none"))
    assert line.endswith("logger=hami.scheduler.verbs message=bound time_=now logger_=none")
    assert len(shlex.split(line)) == 6


@cases(
    "error, debug, field, text",
    ("answer of the cluster", ClusterError("refused"), False, "error", "ClusterError: refused"),
    ("network", ConnectionResetError("gone"), False, "error", "ConnectionResetError: gone"),
    (
        "debugging",
        ClusterError("refused"),
        True,
        "exception",
        "Traceback (most recent call last):\n",
    ),
    ("bug", KeyError("uid"), False, "exception", "Traceback (most recent call last):\n"),
)
def test_an_exception_stays_on_the_line(error, debug, field, text):
    line = logs.LineFormatter("json", debug).format(record("failed", error=raised(error)))
    assert json.loads(line)[field].startswith(text)
    for formatter in (logs.LineFormatter("text", debug), logs.LineFormatter("json", debug)):
        assert len(formatter.format(record("failed", error=raised(error))).splitlines()) == 1


def test_json_has_the_same_fields():
    line = logs.LineFormatter("json").format(
        record(
            "bound",
            pod="default/a",
            cores=30,
            reasons=["x"],
            at=ValueError("v"),
            text="a\nb\u2028c\x85d",
        )
    )
    assert len(line.splitlines()) == 1
    assert json.loads(line) == {
        "time": "2026-08-21T10:00:00.042Z",
        "level": "info",
        "logger": "hami.scheduler.verbs",
        "message": "bound",
        "pod": "default/a",
        "cores": 30,
        "reasons": ["x"],
        "at": "v",
        "text": "a\nb\u2028c\x85d",
    }


@cases(
    "verbosity, expected",
    (0, ["info hami.x", "warning hami.x", "warning urllib3.pool"]),
    (1, ["info hami.x", "warning hami.x", "warning urllib3.pool"]),
    (3, ["info hami.x", "warning hami.x", "warning urllib3.pool"]),
    (4, ["debug hami.x", "info hami.x", "warning hami.x", "warning urllib3.pool"]),
    (9, ["debug hami.x", "info hami.x", "warning hami.x", "warning urllib3.pool"]),
)
def test_verbosity_is_klog_s(verbosity, expected):
    logs.configure("json", verbosity, stream := io.StringIO())
    for name in ("hami.x", "urllib3.pool"):
        for level in (logging.DEBUG, logging.INFO, logging.WARNING):
            logging.getLogger(name).log(level, "m")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [f"{line['level']} {line['logger']}" for line in lines] == expected


def test_configuring_again_replaces_the_first_time(capsys):
    logs.configure("json")
    logs.configure("text")
    logging.getLogger("hami.x").warning("once")
    assert len(logging.getLogger().handlers) == 1
    assert logging.getLogger().handlers[0].stream is sys.stderr
    assert capsys.readouterr().err.count("once") == 1
