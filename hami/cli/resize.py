"""The command for people that writes: resize."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

import click

from hami.cli.client import Client, people_command
from hami.cli.complete import pod_argument
from hami.cli.targets import pod_and_rest
from hami.codec.durations import parse_duration
from hami.errors import HamiError, MalformedInput
from hami.inspect.tables import printable
from hami.model import PodRef
from hami.runtime.options import Value

if TYPE_CHECKING:
    from hami.codec.resize import Size
    from hami.model import Pod

INTERRUPTED = 130
"""The exit status after Ctrl-C, as that of shells."""


@people_command(
    "resize",
    examples="""
hami resize train-0 --memory 20Gi
hami resize pod/train-0 trainer --memory 20Gi --cores 50 --dry-run
""",
    has_forms=False,
    hidden=("-A",),
)
@pod_argument(" [CONTAINER]")
@click.option(
    "--memory",
    metavar="QUANTITY",
    help="Memory of each of its GPUs, such as 8Gi or 6000 (MiB), or 40% of them.",
)
@click.option(
    "--cores", type=click.IntRange(1, 100), help="Percent of the compute of each of its GPUs."
)
@click.option("--dry-run", is_flag=True, help="Say what would be decided, and write nothing.")
@click.option(
    "--timeout",
    type=Value("duration", parse_duration),
    default="60s",
    show_default=True,
    help="How long to wait until it is applied.",
)
def resize_command(
    *,
    client: Client,
    words: tuple[str, ...],
    memory: str | None,
    cores: int | None,
    dry_run: bool,
    timeout: timedelta,
) -> None:
    """Give a running container more or less of its GPUs.

    It is not restarted. The command waits until the new size is applied. What is not named stays as it is. CONTAINER
    may be left out if only one has GPUs. More is given if it fits on the GPUs and into the quota of the namespace. Less
    is given back when the container uses no more. Until then the request stands, also after Ctrl-C. Needs the right to
    get and patch the pod. Exit status 1 if it is not applied.
    """
    from hami.inspect.read import Reader
    from hami.inspect.resize import ask, follow, resizable

    if memory is None and cores is None:
        raise click.UsageError("expected --memory, --cores or both")
    name, rest = pod_and_rest(words, 1)
    container = rest[0] if rest else ""
    size = _size_of(memory, cores, container or name)
    ref = PodRef(client.single_namespace("a pod has one namespace"), name, "")
    if dry_run:
        _try(client, ref, container, size)
        return
    if client.snapshot:
        raise HamiError("a snapshot does not change: only --dry-run answers from one")
    request, reader = client.writer(), client.reader()
    silent = Reader(request)  # it says nothing about a missing right to list events

    def read() -> Pod:
        if (pod := reader.pod(ref)) is None:
            raise HamiError(f'pods "{name}" not found in namespace {ref.namespace}')
        return pod

    chosen = resizable(read(), container)
    asked = ask(request, read, chosen, size)
    _say(f"requested: {chosen} {_size_text(size)}")
    try:
        problem = follow(
            asked,
            lambda: reader.pod(ref),
            _say,
            timeout_s=timeout.total_seconds(),
            why=lambda ref: silent.events(ref, "ResizePending"),
        )
    except KeyboardInterrupt:
        _say(f"interrupted. The request stands: see hami explain pod {name} -n {ref.namespace}")
        click.get_current_context().exit(INTERRUPTED)
    if problem:
        _fail(problem)


def _size_of(memory: str | None, cores: int | None, container: str) -> Size:
    """Returns the size that the options ask for. Raises: HamiError."""
    from hami.codec.resize import make_size

    try:
        return make_size(memory, cores, container)
    except MalformedInput as error:
        raise HamiError(f"--memory={error.text}: {error.problem}") from error


def _try(client: Client, ref: PodRef, container: str, size: Size) -> None:
    """Says what the scheduler would decide. The exit status is 1 if the size would not be booked. Raises: HamiError."""
    from hami.codec.resize import ResizeState
    from hami.inspect.cluster import unknown_pod
    from hami.inspect.resize import requested_sizes, resizable, try_resize

    cluster = client.cluster()
    if (pod := cluster.pod_named(ref.namespace, ref.name)) is None:
        raise unknown_pod(cluster, ref.namespace, ref.name)
    sizes = requested_sizes(pod, resizable(pod, container), size)
    state, text = try_resize(cluster, pod, sizes)
    if state == ResizeState.INFEASIBLE:
        _fail(text)
    _say(text)
    if state != ResizeState.BOOKED:
        click.get_current_context().exit(1)


def _size_text(size: Size) -> str:
    words = []
    if size.memory_mib is not None:
        words.append(f"{size.memory_mib:,} MiB")
    if size.memory_percent is not None:
        words.append(f"{size.memory_percent} % of the memory")
    if size.cores is not None:
        words.append(f"{size.cores} cores")
    return " and ".join(words)


def _say(text: str) -> None:
    click.echo(printable(text))


def _fail(text: str) -> NoReturn:
    """Ends the command: it did what it could, and the answer is no."""
    click.echo(f"error: {printable(text)}", err=True)
    click.get_current_context().exit(1)
