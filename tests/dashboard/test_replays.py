"""The page Replays: what the files of a folder say, and in a sentence why they say nothing."""

import json
import os

import msgspec

from hami.dashboard.replays import (
    MAX_BYTES,
    MAX_REPORTS,
    ReplaysView,
    read_reports,
    reports_poller,
)
from hami.inspect.tables import versioned
from hami.inspect.twin_report import (
    TWIN_REPORT,
    CauseCount,
    TwinComparison,
    TwinOutcome,
    TwinReport,
    WaitRow,
)
from testing.cases import cases
from tests.dashboard.stage import Rights, Stage

WAITED = WaitRow(priority=0, pods=5000, mean_s=263.0, p50_s=0.0, p99_s=9579.1)
OUTCOME = TwinOutcome(
    allocated=61.42, stranded=11.1, placed=4974, waiting=26, evicted=0, waited=WAITED
)
REPORT = TwinReport(
    since="2026-09-21T14:13:20Z",
    until="2026-09-28T12:02:14Z",
    nodes=200,
    pods=5000,
    node_policy="spread",
    device_policy="binpack",
    recorded=msgspec.structs.replace(OUTCOME, allocated=58.6, stranded=None),
    replayed=OUTCOME,
    comparison=TwinComparison(decisions=9, same=7, causes=(CauseCount(cause="Tie", decisions=2),)),
    notes=("not recorded: <quotas>",),
)


def write(folder, name, document):
    (folder / name).write_text(document if isinstance(document, str) else json.dumps(document))


def stage(folder, rights=None):
    """A dashboard that has read *folder*."""
    reports = reports_poller(clock=lambda: 0.0)
    reports.view(str(folder))
    reports.step()
    return Stage(rights=rights, replays=ReplaysView(str(folder), reports))


def test_reports_are_shown_by_name(tmp_path):
    for name in ("spread.json", "binpack.json"):
        write(tmp_path, name, versioned(TWIN_REPORT, REPORT))
    site = stage(tmp_path)
    text = site.ask("/replays").text
    assert text.index("<h2>binpack</h2>") < text.index("<h2>spread</h2>")
    for part in (
        "5,000 pods on 200 nodes from 2026-09-21T14:13:20Z to 2026-09-28T12:02:14Z; replayed with spread",
        '<td role="cell" data-title="Happened">58.6 %</td>',
        '<td role="cell" data-title="Replayed">61.4 %</td>',
        '<td role="cell" data-title="Happened">–</td>',
        "0.0, 9,579.1, 263.0 s",
        "Decided again: 7 of 9 as recorded; others: 2 Tie.",
        "not recorded: &lt;quotas&gt;",
    ):
        assert part in text
    item = site.json("/replays")["items"][1]
    assert (item["name"], item["problem"]) == ("spread", "")
    assert item["report"] == json.loads(msgspec.json.encode(REPORT))


def test_a_mounted_config_map_is_a_folder_of_links(tmp_path):
    data = tmp_path / "..2026_11_30"
    data.mkdir()
    write(data, "week.json", versioned(TWIN_REPORT, REPORT))
    (tmp_path / "..data").symlink_to(data.name)
    (tmp_path / "week.json").symlink_to("..data/week.json")
    assert [(item.name, item.report) for item in read_reports(str(tmp_path)).items] == [
        ("week", REPORT)
    ]


@cases(
    "document, problem",
    ("text", "week", "week.json: not JSON"),
    (
        "other kind",
        {"apiVersion": "v1", "kind": "Pod"},
        "expected inspect.hami.io/v1alpha1 TwinReport",
    ),
    (
        "other type",
        {**versioned(TWIN_REPORT, REPORT), "nodes": "many"},
        "week.json: nodes: ",
    ),
    (
        "great number",
        json.dumps(versioned(TWIN_REPORT, REPORT)).replace("5000", "9" * 5000),
        "week.json: ",
    ),
    ("too long", " " * (MAX_BYTES + 1), "expected at most 1 MiB"),
)
def test_a_file_that_is_no_report_says_why(tmp_path, document, problem):
    write(tmp_path, "week.json", document)
    write(tmp_path, "zebra.json", versioned(TWIN_REPORT, REPORT))
    one, other = read_reports(str(tmp_path)).items
    assert one.report is None
    assert problem in one.problem != ""
    assert other.report == REPORT
    assert "This is no report: " in stage(tmp_path).ask("/replays").text


def test_what_is_no_file_keeps_nobody_waiting(tmp_path):
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "gone.json").symlink_to("nowhere")
    assert [(item.name, item.problem) for item in read_reports(str(tmp_path)).items] == [
        ("fifo", "fifo.json: expected a file"),
        ("folder", "Is a directory"),
        ("gone", "No such file or directory"),
    ]


def test_only_so_many_are_shown(tmp_path):
    for number in range(MAX_REPORTS + 2):
        write(tmp_path, f"{number:02}.json", versioned(TWIN_REPORT, REPORT))
    page = read_reports(str(tmp_path))
    assert (len(page.items), page.others) == (MAX_REPORTS, 2)
    assert "2 reports more." in stage(tmp_path).ask("/replays").text


def test_of_a_folder_with_many_files_only_so_many_names_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("hami.dashboard.replays.MAX_FILES", 3)
    for number in range(5):
        write(tmp_path, f"{number}.json", versioned(TWIN_REPORT, REPORT))
    assert len(read_reports(str(tmp_path)).items) == 3


def test_without_reports_it_says_so(tmp_path):
    site = Stage()
    assert (
        "There are no reports: the dashboard has no --replay-reports." in site.ask("/replays").text
    )
    assert ">Replays</a>" not in site.ask("/").text
    site = stage(tmp_path)
    assert "the folder of reports has no file *.json" in site.ask("/replays").text
    assert ">Replays</a>" in site.ask("/").text
    text = stage(tmp_path / "none").ask("/replays").text
    assert "the folder of reports cannot be read: No such file or directory" in text


def test_every_viewer_who_is_known_sees_them(tmp_path):
    write(tmp_path, "week.json", versioned(TWIN_REPORT, REPORT))
    site = stage(tmp_path, Rights(users={"t": "dev"}, may={"dev": {"ci"}}))
    assert site.ask("/replays").status_code == 401
    assert len(site.json("/replays?namespace=ci", "t")["items"]) == 1
