"""Log formats: one line per message, as ``key=value`` or JSON.

A line has time (ISO 8601, UTC), level, logger, message, and the fields of ``extra`` in the order given. Line breaks,
such as those of a traceback, are escaped. Libraries log from WARNING upwards only.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from types import NoneType
from typing import TextIO

from hami.errors import HamiError

DEBUG_VERBOSITY = 4

_LIBRARIES = ("gunicorn", "kubernetes", "urllib3", "werkzeug")
_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", None, None))) | {
    "message",
    "asctime",
    "taskName",
}
_FIRST = ("time", "level", "logger", "message")
_QUOTED = frozenset(' "=\\')


def configure(format: str = "text", verbosity: int = 0, stream: TextIO | None = None) -> None:
    """Sends the log of the process to *stream* (standard error), replacing any earlier configuration.

    *format*: ``text`` or ``json``. *verbosity*: klog's ``-v``; 4 or more adds debug messages, and tracebacks of
    expected errors.
    """
    debug = verbosity >= DEBUG_VERBOSITY
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(LineFormatter(format, debug))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("hami").setLevel(logging.DEBUG if debug else logging.INFO)
    for library in _LIBRARIES:
        logging.getLogger(library).setLevel(logging.WARNING)


class LineFormatter(logging.Formatter):
    """One line for each record.

    ``text``: ``key=value``; values with blanks, quotes, ``=`` or unprintable characters are quoted as in JSON.
    ``json``: one object.
    """

    def __init__(self, format: str, debug: bool = False) -> None:
        super().__init__()
        self._write = _as_json if format == "json" else _as_text
        self._debug = debug

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        created = datetime.fromtimestamp(record.created, UTC)
        values: dict[str, object] = {
            "time": created.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in vars(record).items():
            if key not in _STANDARD:
                values[f"{key}_" if key in _FIRST else key] = value
        return self._write(values | self._error_fields(record))

    def _error_fields(self, record: logging.LogRecord) -> dict[str, object]:
        """The exception of *record*: its message if expected, the traceback if it is a bug or while debugging."""
        if not record.exc_info:
            return {}
        error = record.exc_info[1]
        if error is None:
            return {}
        if isinstance(error, HamiError | OSError) and not self._debug:
            return {"error": f"{type(error).__name__}: {error}"}
        return {"exception": self.formatException(record.exc_info)}


def _as_text(values: dict[str, object]) -> str:
    return " ".join(f"{key}={_quoted(value)}" for key, value in values.items())


def _quoted(value: object) -> str:
    text = str(value)
    if isinstance(value, bool | dict | list | tuple | NoneType):
        text = _json(value)
    if not text.isprintable():
        return json.dumps(text)
    if text and _QUOTED.isdisjoint(text):
        return text
    return json.dumps(text, ensure_ascii=False)


def _as_json(values: dict[str, object]) -> str:
    # some readers end a line at separators beyond ASCII
    return (
        _json(values)
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
        .replace("\x85", "\\u0085")
    )


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
