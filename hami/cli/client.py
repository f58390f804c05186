"""Parts that the commands for people share: the user's own access to the cluster, and the form of the output."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hami.errors import HamiError
from hami.runtime.options import read_text

if TYPE_CHECKING:
    from hami.inspect.read import Reader
    from hami.inspect.record import ClusterRecord, SchedulingEvent
    from hami.inspect.tables import Style
    from hami.kube.pages import Requester
    from hami.model import Pod, PodRef

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
TIMEOUT_S = 30.0  # for each page
YOUNG_OBJECTS = 1_000_000
"""Objects between two garbage collections: a command ends soon, and most of what it allocates stays until then."""
NODE_POLICIES = ("binpack", "spread")
FORMS = ("table", "wide", "json", "yaml")

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """The cluster as the user reaches it. *connect*: tests pass their own."""

    kubeconfig: str
    context: str
    namespace: str
    all_namespaces: bool
    device_config_file: str
    device_config_map: str
    node_policy: str
    device_policy: str
    snapshot: str
    connect: Callable[[Client], Requester]

    def reader(self) -> Reader:
        """Returns a reader that shows its progress on a terminal, and notes on standard error."""
        from hami.inspect.read import Reader

        return Reader(self.connect(self), progress=show_progress, note=show_note)

    def read(self) -> ClusterRecord:
        """Returns the record of the cluster, or that of the snapshot. Raises: HamiError."""
        from hami.inspect.read import RecordSource
        from hami.runtime.interpreter import collect_rarely
        from hami.state.view import Policies

        collect_rarely(YOUNG_OBJECTS)
        if self.snapshot:
            return read_snapshot(self.snapshot)
        namespace, slash, name = self.device_config_map.partition("/")
        if not slash:
            raise HamiError(f"--device-config-map={self.device_config_map}: expected NAMESPACE/NAME")
        text = read_text("--device-config-file", self.device_config_file) if self.device_config_file else None
        return self.reader().record(RecordSource(
            config_map=(namespace, name), device_config=text, policies=Policies(self.node_policy, self.device_policy)))

    def find_pod(self, ref: PodRef) -> Pod | None:
        """Returns the pod of this namespace and name, also one without devices; ``None`` if there is none."""
        return None if self.snapshot else self.reader().pod(ref)

    def events(self, record: ClusterRecord, ref: PodRef) -> Sequence[SchedulingEvent]:
        """Returns why a pod of *record* could not be scheduled, in the words of kube-scheduler."""
        return record.events.get(ref.uid, ()) if self.snapshot else self.reader().events(ref)

    def all_events(self) -> Mapping[str, tuple[SchedulingEvent, ...]]:
        """Returns why pods could not be scheduled, by uid."""
        return self.reader().all_events()

    def chosen_namespace(self) -> str:
        """Returns the namespace of the command line, else of the context; empty for all namespaces."""
        from hami.kube.api import context_namespace

        if self.all_namespaces:
            return ""
        if self.snapshot:
            return self.namespace or "default"
        return self.namespace or context_namespace(self.kubeconfig, self.context)


def read_snapshot(path: str) -> ClusterRecord:
    """Returns the record in the snapshot at *path*; ``-`` is standard input. Raises: HamiError."""
    from hami.inspect.snapshot import parse_snapshot

    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise HamiError(f"{path}: {error.strerror}") from error
    return parse_snapshot(data, path)


def connect_api(client: Client) -> Requester:
    """Returns calls to the API server of the user's kubeconfig. Raises: HamiError."""
    from hami.kube.api import Api

    return Api.connect(timeout=TIMEOUT_S, pool=2, kubeconfig=client.kubeconfig, context=client.context).request


_CLIENT_OPTIONS = (
    click.option("--kubeconfig", default="", metavar="FILE", help="Configuration of the access; without it that of "
                 "KUBECONFIG, else ~/.kube/config."),
    click.option("--context", default="", metavar="NAME", help="Context of the configuration to use."),
    click.option("-n", "--namespace", default="", metavar="NAME", help="Namespace of pods; without it that of the "
                 "context."),
    click.option("-A", "--all-namespaces", is_flag=True, help="Pods of all namespaces."),
    click.option("--device-config-file", default="", metavar="FILE", help="Device configuration of the scheduler, "
                 "instead of the ConfigMap."),
    click.option("--device-config-map", default="kube-system/hami-scheduler-device", show_default=True,
                 metavar="NAMESPACE/NAME", help="ConfigMap with the device configuration."),
    click.option("--node-scheduler-policy", "node_policy", type=click.Choice(NODE_POLICIES), default="binpack",
                 show_default=True, help="Default node policy of the scheduler."),
    click.option("--gpu-scheduler-policy", "device_policy", default="spread", show_default=True, metavar="POLICY",
                 help="Default device policy of the scheduler."),
    click.option("--snapshot", default="", metavar="FILE", help="Answer from a file that hami snapshot has written, "
                 "instead of a cluster; it contains the device configuration and the policies."),
)
_CLIENT_FIELDS = (
    "snapshot", "kubeconfig", "context", "namespace", "all_namespaces", "device_config_file", "device_config_map",
    "node_policy", "device_policy",
)
_OUTPUT_OPTIONS = (
    click.option("-o", "--output", "form", type=click.Choice(FORMS), default="table", show_default=True,
                 help="Form of the output."),
    click.option("--no-headers", is_flag=True, help="Leave out headings and summaries of tables."),
)


def client_options(command: F) -> F:
    """Adds the options of the access to *command*, which takes them as ``client``."""
    @click.pass_context
    @functools.wraps(command)
    def run(ctx: click.Context, /, **values: Any) -> Any:
        fields = {name: values.pop(name) for name in _CLIENT_FIELDS}
        return command(client=Client(**fields, connect=ctx.obj or connect_api), **values)
    for option in reversed(_CLIENT_OPTIONS):
        run = option(run)
    return run  # type: ignore[return-value]


def output_options(command: F) -> F:
    """Adds the options of the output to *command*, which takes them as ``style``."""
    @functools.wraps(command)
    def run(*, form: str, no_headers: bool, **values: Any) -> Any:
        return command(style=make_style(form, headers=not no_headers), **values)
    for option in reversed(_OUTPUT_OPTIONS):
        run = option(run)
    return run  # type: ignore[return-value]


def make_style(form: str, *, headers: bool = True) -> Style:
    """Returns the style of the output: with colors only on a terminal, and not if NO_COLOR is set."""
    import os

    from hami.inspect.tables import Style

    is_terminal = sys.stdout is not None and sys.stdout.isatty()  # there is none where it was closed
    return Style(form, headers, color=is_terminal and not os.environ.get("NO_COLOR"))


def show_note(text: str) -> None:
    """Prints a note on standard error."""
    from hami.inspect.tables import printable

    click.echo(f"note: {printable(text)}", err=True)


def show_progress(resource: str, count: int, total: int) -> None:
    """Shows on a terminal how much of a list has been read; the line disappears with the last page."""
    if sys.stderr.isatty():
        is_last = count >= total
        line = "" if is_last else f"reading {resource}: {count:,} of {total:,}"
        click.echo(f"\r\x1b[K{line}", err=True, nl=False)
