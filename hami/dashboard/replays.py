"""The page Replays: reports of ``hami replay -o json``, each a file of one folder.

A replay takes minutes and a recording: who has both makes the reports, and the dashboard shows them beside each other.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from hami.codec.documents import convert, parse_json, places_in
from hami.dashboard.caches import Poller, PollLimits
from hami.errors import HamiError, MalformedInput
from hami.inspect.tables import API_VERSION, OutputRecord
from hami.inspect.twin_report import TWIN_REPORT, TwinReport

MAX_FILES = 1000  # of the folder, whose names are read
MAX_REPORTS = 20  # on the page
MAX_BYTES = 1 << 20  # of a report
SUFFIX = ".json"
LIMITS = PollLimits(interval=30.0, shown=3600.0, viewed=900.0, values=1, at_once=1)
FIRST_S = 2.0  # for which the first viewer waits until the folder has been read


class ReplayItem(OutputRecord, frozen=True):
    """A file, by its *name* without the suffix. *problem*: why it is no report; empty if it is one."""

    name: str
    report: TwinReport | None = None
    problem: str = ""


class ReplayPage(OutputRecord, frozen=True):
    """The reports by name. *others*: how many more files there are. *problem*: why there is no report; empty if the
    folder has been read."""

    items: tuple[ReplayItem, ...] = ()
    others: int = 0
    problem: str = ""


def read_reports(folder: str) -> ReplayPage:
    """Returns what the files of *folder* say. A mounted ConfigMap is such a folder: its files are links."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, MAX_FILES)]
    except OSError as error:
        return ReplayPage(problem=f"the folder of reports cannot be read: {error.strerror}")
    reports = sorted(name for name in names if name.endswith(SUFFIX) and not name.startswith("."))
    if not reports:
        return ReplayPage(problem=f"the folder of reports has no file *{SUFFIX}")
    items = tuple([_read(Path(folder, name)) for name in reports[:MAX_REPORTS]])
    return ReplayPage(items, len(reports[MAX_REPORTS:]))


def _read(path: Path) -> ReplayItem:
    name = path.name.removesuffix(SUFFIX)
    try:
        return ReplayItem(name, _parse(path.name, _content(path)))
    except OSError as error:
        return ReplayItem(name, problem=error.strerror or str(error))
    except HamiError as error:
        return ReplayItem(name, problem=str(error))


def _content(path: Path) -> str:
    """Returns the text of a file. Raises: OSError; HamiError for anything but a file of at most MAX_BYTES."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise HamiError(f"{path.name}: expected a file")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise HamiError(f"{path.name}: expected at most {MAX_BYTES >> 20} MiB")
    return content.decode(errors="replace")


def _parse(source: str, text: str) -> TwinReport:
    document = parse_json(text, source)
    found = ""
    if isinstance(document, dict):
        found = f"{document.get('apiVersion')} {document.get('kind')}"
    if found != f"{API_VERSION} {TWIN_REPORT}":
        raise MalformedInput(source, found, f"expected {API_VERSION} {TWIN_REPORT}")
    return convert(document, TwinReport, places_in(source))


def reports_poller(*, clock: Callable[[], float]) -> Poller[str, ReplayPage]:
    """Returns the reports of the folder that is viewed, by its path."""
    return Poller("replays", read_reports, LIMITS, clock=clock)


class ReplaysView:
    """Makes the page of the reports in *folder*; without one there are none. *reports*: reads them."""

    def __init__(self, folder: str, reports: Poller[str, ReplayPage] | None = None) -> None:
        self.folder = folder
        self._reports = reports

    def expect(self) -> None:
        """Waits for the first look at the folder."""
        if self._reports is not None:
            self._reports.wait([self.folder], FIRST_S)

    def page(self) -> ReplayPage:
        """Returns the reports as they were read last."""
        if self._reports is None:
            return ReplayPage(problem="the dashboard has no --replay-reports")
        page = self._reports.view(self.folder)
        if page is None:
            return ReplayPage(problem="the folder of reports is not read yet")
        return page


NO_REPLAYS = ReplaysView("")
"""The page without reports."""
