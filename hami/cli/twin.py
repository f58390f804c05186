"""The commands for people about what came and where it was placed: record and replay."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hami.cli.client import (
    MAX_TIMEOUT_S,
    YOUNG_OBJECTS,
    Answer,
    Client,
    people_command,
    read_snapshot,
    show_note,
)
from hami.codec.policies import NODE_POLICIES
from hami.errors import HamiError
from hami.inspect.tables import Style
from hami.runtime import logs

if TYPE_CHECKING:
    from hami.inspect.read_recording import Recording
    from hami.inspect.twin import Changes

TRACE = ".csv"
INTERRUPTED = 130  # the exit status after Ctrl-C
MIB = 1 << 20
PREEMPTION: Mapping[str | None, bool] = {"allow": True, "never": False}


@people_command(
    "record",
    examples="""
hami record recording
hami record /data --max-size 2048
""",
    has_forms=False,
    hidden=("-n", "-A", "--snapshot"),
)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--max-size",
    type=click.IntRange(8, 1 << 20),
    default=1024,
    show_default=True,
    metavar="MIB",
    help="Size of all files together; the oldest are deleted.",
)
def record_command(*, client: Client, folder: Path, max_size: int) -> None:
    """Record pods and nodes for hami replay, until Ctrl-C.

    It records which pods come, where they are placed and when they end, with what a replay needs: requests for devices,
    CPU and memory, priority, kind of owner, and nodes with their devices. Names are hashed with a salt, which stays in
    the folder as the file salt; annotations and labels of pods, images, environment and users are left out. It writes
    nothing to the cluster. Needs the right to list and watch nodes and pods of the cluster.
    """
    from hami.inspect.recording_program import RecordingProgram
    from hami.kube.api import Api
    from hami.runtime.signals import listen, run_until_signal
    from hami.state.view import Policies

    if client.snapshot:
        raise HamiError("--snapshot: a snapshot does not change")
    logs.configure()
    logging.getLogger("hami").setLevel(logging.WARNING)
    program = RecordingProgram(
        Api.connect(client.access, timeout=client.request_timeout or MAX_TIMEOUT_S),
        folder,
        client.device_config(),
        Policies(client.node_policy, client.device_policy),
        most_bytes=max_size * MIB,
        segment_bytes=max(MIB, max_size * MIB // 16),
    )
    click.echo(f"Recording into {folder} until you press Ctrl-C.", err=True)
    status = run_until_signal(program, listen())
    click.echo(f"{program.recorder.pods.count:,} pods recorded.", err=True)
    click.get_current_context().exit(status)


@people_command(
    "replay",
    examples="""
hami replay cluster.json.gz
hami replay recording
hami replay recording --policy spread --without 10
hami replay openb_pod_list_default.csv --nodes like=node-0001:20
""",
    of_cluster=False,
)
@click.argument("file")
@click.option(
    "--policy",
    type=click.Choice(NODE_POLICIES),
    help="Node policy of pods that name none, instead of the recorded one.",
)
@click.option(
    "--device-policy",
    metavar="POLICY",
    help="Device policy of pods that name none, in the same way.",
)
@click.option(
    "--nodes",
    "added",
    multiple=True,
    metavar="like=NODE:COUNT",
    help="Add nodes like a recorded one.",
)
@click.option(
    "--without",
    multiple=True,
    metavar="NODE|COUNT",
    help="Do without this node, or without so many.",
)
@click.option(
    "--preemption",
    type=click.Choice(["allow", "never"]),
    help="Whether pods may evict those of lower priority; without it, if some did.",
)
def replay_command(
    *,
    style: Style,
    file: str,
    policy: str | None,
    device_policy: str | None,
    preemption: str | None,
    **nodes: Any,
) -> Answer:
    """Decide again about the pods of the past.

    Of a snapshot, each pod is decided beside what was recorded before it; the exit status is 1 if a decision differs.

    A recording (a folder or a file of hami record) or a trace (the list of pods as CSV, that of nodes beside it) runs
    again, with the changes of the options: pods come when they came and run for as long as they ran. Shown is how much
    was allocated and stranded and how long pods waited, beside what happened. Without changes, each decision is also
    made again beside what was recorded before it.
    """
    from hami.inspect.twin import Changes

    changes = Changes(
        node_policy=policy or "",
        device_policy=device_policy or "",
        preemption=PREEMPTION.get(preemption),
        **nodes,
    )
    try:
        recording = _recording(file)
        if recording is not None:
            return _twin(recording, changes, style)
    except KeyboardInterrupt:
        show_part("", 1.0)
        click.get_current_context().exit(INTERRUPTED)
    if changes != Changes():
        raise HamiError(f"{file}: a snapshot has one moment: its replay has no options")
    return _snapshot(file, style)


def _snapshot(file: str, style: Style) -> Answer:
    from hami.inspect.simulate import render_replay, replay

    decisions = replay(read_snapshot(file))
    not_same = any([not decision.is_same for decision in decisions])
    return Answer(
        document={"items": decisions},
        text=lambda: render_replay(decisions, style),
        kind="ReplayedDecisionList",
        status=int(not_same),
    )


def _twin(recording: Recording, changes: Changes, style: Style) -> Answer:
    from hami.inspect.twin_report import TWIN_REPORT, make_twin_report, render_twin

    report = make_twin_report(recording, changes, show_part)
    return Answer(document=report, text=lambda: render_twin(report, style), kind=TWIN_REPORT)


def _recording(file: str) -> Recording | None:
    """Returns the recording or the trace at *file*; ``None`` for a snapshot. Raises: HamiError."""
    from hami.inspect.read_recording import read_recording
    from hami.inspect.segments import is_segment, segments_at
    from hami.inspect.traces import read_trace
    from hami.runtime.interpreter import collect_rarely

    path = Path(file)
    if not path.is_dir() and not path.is_file():
        return None
    collect_rarely(YOUNG_OBJECTS)
    if path.suffix == TRACE:
        return read_trace(path)
    if path.is_file() and not is_segment(path):
        return None
    return read_recording(segments_at(path), show_note, _show_lines)


def _show_lines(count: int) -> None:
    _show(f"reading: {count:,} lines")


def show_part(what: str, part: float) -> None:
    """Shows on a terminal which part of something is done; the line disappears at the end."""
    line = ""
    if part < 1:
        line = f"{what}: {part:.0%}"
    _show(line)


def _show(line: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{line}", err=True, nl=False)
