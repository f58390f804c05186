"""The command for people that shows what was held: usage."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from hami.cli.client import Answer, Client, people_command, show_note
from hami.codec.usage_sums import DAY_S
from hami.errors import ClusterError, HamiError
from hami.inspect.gpu_hours import Budgets, first_day, make_budget_reports, read_budgets
from hami.inspect.read_usage import USAGE_NAMESPACE
from hami.inspect.tables import CSV, FOCUS, Style
from hami.inspect.usage import (
    GROUPS,
    SHARES,
    UsageQuery,
    make_report,
    parse_prices,
    parse_since,
    render_csv,
    render_focus,
    render_usage,
    with_budgets,
)
from hami.runtime.options import read_text

if TYPE_CHECKING:
    from hami.codec.usage_sums import UsageSums
    from hami.inspect.prometheus import Fetch
    from hami.inspect.read_usage import UsageReader

FORBIDDEN = 403  # status of HTTP


@people_command(
    "usage",
    examples="""
hami usage
hami usage --since 4w --by owner -n team-a
hami usage --since 2026-11-01 --prices prices.yaml -o csv
hami usage --waste --prometheus http://localhost:9090
""",
    forms=(CSV, FOCUS),
)
@click.option(
    "--since",
    default="7d",
    show_default=True,
    metavar="TIME",
    help="From when: hours, days or weeks ago (36h, 7d, 4w), or a date in UTC.",
)
@click.option(
    "--by",
    type=click.Choice(tuple(GROUPS)),
    default=None,
    show_default="namespace, or pod with --waste",
    help="The rows. Workloads (owner) are known by whole days, pods while they exist.",
)
@click.option(
    "--share",
    type=click.Choice(SHARES),
    default="dominant",
    show_default=True,
    help="The part of a device that GPU-hours count: the larger one of its memory and its cores (dominant), one of "
    "them, or their mean.",
)
@click.option(
    "--prices",
    default="",
    metavar="FILE",
    help="Prices of GPU-hours (YAML): currency, prices by model, and default.",
)
@click.option(
    "--prometheus",
    default="",
    metavar="URL",
    help="Prometheus with the metrics of HAMi's monitors. Adds what was used and what was wasted to namespaces, "
    "workloads and pods, and pods that have ended.",
)
@click.option(
    "--waste",
    is_flag=True,
    help="The most wasted first; pods with the command that would fit their peaks (of 7 days at most). "
    "Requires --prometheus.",
)
@click.option(
    "--usage-namespace",
    default=USAGE_NAMESPACE,
    show_default=True,
    metavar="NAME",
    help="Namespace of the records, as the scheduler's flag says.",
)
def usage_command(
    *,
    client: Client,
    style: Style,
    since: str,
    by: str | None,
    prices: str,
    prometheus: str,
    waste: bool,
    usage_namespace: str,
    **counted: str,
) -> Answer:
    """Show to whom how much of the devices was allocated.

    It counts from the Binding of a pod to the end of its containers; with --prometheus also what was used of it. -n
    leaves the other namespaces out. -o csv and -o focus are for spreadsheets and billing; the latter has the columns of
    FOCUS by the hour. Needs the right to get ConfigMaps in the namespace of the records; without it, -n asks the API
    group inspect.hami.io for one namespace whose pods you may list. --by pod reads the cluster instead.
    """
    if client.snapshot:
        raise HamiError("--snapshot: a snapshot has no usage")
    if waste and not prometheus:
        raise HamiError("--waste: requires --prometheus, since only monitors know what was used")
    query = UsageQuery(
        since=0,
        until=0,
        by=by or ("pod" if waste else "namespace"),
        namespace=client.namespace,
        prices=parse_prices(read_text("--prices", prices), prices) if prices else None,
        by_waste=waste,
        **counted,
    )
    fetch = _fetch(prometheus) if prometheus else None
    if query.by == "pod":
        if style.form == FOCUS:
            raise HamiError("-o focus: rows of pods are not known by the hour")
        return _of_pods(client, style, query, since, fetch)
    return _of_records(client, style, query, since, fetch, usage_namespace)


def _fetch(url: str) -> Fetch:
    from hami.inspect.measured_use import ANSWER_LIMIT, TIMEOUT_S
    from hami.inspect.prometheus import check_url, make_fetch

    check_url("--prometheus", url)
    return make_fetch(url, timeout_s=TIMEOUT_S, limit=ANSWER_LIMIT)


def _of_records(
    client: Client,
    style: Style,
    query: UsageQuery,
    since: str,
    fetch: Fetch | None,
    usage_namespace: str,
) -> Answer:
    reader, sums = _read_current(client, usage_namespace)
    query = replace(query, since=parse_since(since, sums.settled), until=sums.settled)
    budgets = _budgets(client, query)
    first = first_day(budgets, sums.settled)
    since_budgets = query.start if first is None else min(first, query.start)
    all_days = list(reader.days(sums, since_budgets, with_owners=query.by == "owner"))
    days = [day for day in all_days if day.start + DAY_S > query.start]
    report = make_report(days, query)
    if fetch is not None:
        from hami.inspect.measured_use import read_use_of

        report = make_report(days, query, read_use_of(fetch, days, query, show_note))
    if budgets:
        report = with_budgets(report, make_budget_reports(budgets, all_days, sums.settled))

    def text() -> str:
        if style.form == CSV:
            return render_csv(report)
        if style.form == FOCUS:
            return render_focus(days, query)
        return render_usage(report, style)

    return Answer(document=report, text=text, kind="UsageReport")


def _budgets(client: Client, query: UsageQuery) -> Budgets:
    """Returns the budgets that the rows show."""
    if query.by != "namespace":
        return {}
    return read_budgets(client.connect(client), query.namespace, show_note)


def _read_current(client: Client, usage_namespace: str) -> tuple[UsageReader, UsageSums]:
    """Returns what reads the records, and the sums until now: of one namespace by the API group ``inspect.hami.io``, if
    the user may not get all of them. Raises: HamiError."""
    from hami.inspect.read_usage import UsageReader

    request = client.connect(client)
    reader = UsageReader(request, usage_namespace, show_note)
    try:
        return reader, reader.current()
    except ClusterError as error:
        if error.status != FORBIDDEN:
            raise
        lacking = error
    if not client.namespace:
        raise HamiError(f"{lacking}; to see one namespace alone, name it with -n") from lacking
    reader = UsageReader(request, usage_namespace, show_note, only=client.namespace)
    try:
        return reader, reader.current()
    except HamiError as error:
        raise HamiError(f"{lacking}; and the API group inspect.hami.io says: {error}") from error


def _of_pods(
    client: Client, style: Style, query: UsageQuery, since: str, fetch: Fetch | None
) -> Answer:
    from hami.inspect.measured_use import read_peaks, read_use
    from hami.inspect.usage_by_pod import make_pod_report

    record = client.read()
    now = int(record.taken.timestamp())
    query = replace(query, since=parse_since(since, now), until=now)
    use, peaks = None, None
    if fetch is not None:
        use = read_use(fetch, query.start, now, ("namespace", "pod"), query.namespace)
    else:
        show_note("pods that have ended are known with --prometheus only")
    if fetch is not None and query.by_waste:
        peaks = read_peaks(fetch, query.start, now, query.namespace)
    report = make_pod_report(record, query, use, peaks)

    def text() -> str:
        return render_csv(report) if style.form == CSV else render_usage(report, style)

    return Answer(document=report, text=text, kind="UsageReport")
