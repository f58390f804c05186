"""``hami usage``: who has held how much, from the records in ConfigMaps."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from hami.cli import main
from hami.codec.config_maps import render_config_map
from hami.codec.keys import GPU_HOURS
from hami.codec.usage_objects import (
    CURRENT,
    day_data,
    name_of_day,
    name_of_owners,
    owners_data,
    render_current,
)
from hami.codec.usage_sums import (
    DAY_S,
    HOUR_S,
    HeldAmounts,
    OwnerKey,
    UsageDay,
    UsageGap,
    UsageKey,
    UsageSums,
)
from hami.errors import ClusterError, MalformedInput, NotFound
from hami.inspect.gpu_hours import budget_sentence, read_budget
from hami.inspect.usage import (
    UsagePrices,
    UsageQuery,
    make_report,
    parse_prices,
    parse_since,
    render_focus,
)

TODAY = 1795824000  # 2026-11-28
YESTERDAY = TODAY - DAY_S
NOW = TODAY + 3 * HOUR_S
VISION = UsageKey("team-vision", "NVIDIA", "A100", "high", "device-plugin")
CI = UsageKey("ci", "NVIDIA", "T4", "", "dra")
WHOLE = HeldAmounts(HOUR_S, 40960 * HOUR_S, 100 * HOUR_S, 1000 * HOUR_S, 1000 * HOUR_S)
QUARTER = HeldAmounts(HOUR_S, 4096 * HOUR_S, 50 * HOUR_S, 500 * HOUR_S, 250 * HOUR_S)
FIRST = UsageDay(
    start=YESTERDAY,
    recorded_from=YESTERDAY + 12 * HOUR_S,
    hours={VISION: dict.fromkeys(range(12, 24), WHOLE)},
    owners={OwnerKey("team-vision", "Deployment", "web", "NVIDIA", "A100"): WHOLE},
)
LAST = UsageDay(
    start=TODAY,
    recorded_from=TODAY,
    hours={VISION: {0: WHOLE, 2: WHOLE}, CI: {1: QUARTER}},
    owners={
        OwnerKey("team-vision", "Deployment", "web", "NVIDIA", "A100"): WHOLE,
        OwnerKey("ci", "CronJob", "nightly", "NVIDIA", "T4"): QUARTER,
    },
    gaps=(UsageGap(TODAY, TODAY + 1800),),
)
SUMS = UsageSums(settled=NOW, day=LAST)
PATH = "/api/v1/namespaces/hami-usage/configmaps/"


def objects():
    """The ConfigMaps by path."""
    data = {
        CURRENT: render_current("hami-usage", "", SUMS).data,
        name_of_day(FIRST.date): day_data(FIRST),
        name_of_owners(FIRST.date): owners_data(FIRST),
    }
    made = {}
    for name, texts in data.items():
        record = replace(render_current("hami-usage", "7", SUMS), name=name, data=texts)
        made[PATH + name] = json.dumps(render_config_map(record, {})).encode()
    return made


def usage(*args, of=None):
    served = objects() if of is None else of

    def request(method, path, *, query=None):
        answer = served.get(path, NotFound("there is none", 404))
        if isinstance(answer, Exception):
            raise answer
        return answer

    return CliRunner().invoke(main, ["usage", *args], obj=lambda client: request)


def rows(*args):
    result = usage(*args, "-o", "json")
    assert result.exit_code == 0, result.output
    return {row["name"]: row["gpuHours"] for row in json.loads(result.stdout)["items"]}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], {"team-vision": 14.0, "ci": 0.5}),
        (["--since", "3h"], {"team-vision": 2.0, "ci": 0.5}),
        (["--since", "2026-11-28"], {"team-vision": 2.0, "ci": 0.5}),
        (["--since", "1h"], {"team-vision": 1.0}),
        (["-n", "ci"], {"ci": 0.5}),
        (["--by", "model"], {"A100": 14.0, "T4": 0.5}),
        (["--by", "priority"], {"high": 14.0, "": 0.5}),
        (["--by", "mode"], {"device-plugin": 14.0, "dra": 0.5}),
        (["--by", "owner"], {"team-vision/Deployment/web": 2.0, "ci/CronJob/nightly": 0.5}),
        (["--by", "owner", "-n", "ci"], {"ci/CronJob/nightly": 0.5}),
        (["--share", "memory"], {"team-vision": 14.0, "ci": 0.25}),
        (["--share", "mean"], {"team-vision": 14.0, "ci": 0.375}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_rows(args, expected):
    assert rows(*args) == expected


def test_the_table():
    lines = usage("--since", "2d").stdout.splitlines()
    assert lines == [
        "NAMESPACE    GPU-HOURS  GIB-HOURS  CORE-HOURS",
        "team-vision  14.0       560        14.0",
        "ci           0.5        4          0.5",
        "2 namespaces, 14.5 GPU-hours (the larger of the shares of memory and cores).",
        "2026-11-26T03:00:00Z to 2026-11-28T03:00:00Z: 14.5 of 48.0 hours are recorded.",
    ]


def test_prices(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text("currency: EUR\nprices: {A100: 2.5}\n")
    table = usage("--prices", str(path)).stdout
    assert table.splitlines()[0].endswith("COST EUR")
    assert table.splitlines()[1].endswith("35.00")
    assert table.splitlines()[2].endswith("–")
    lines = usage("--prices", str(path), "-o", "csv").stdout.splitlines()
    assert lines == [
        "namespace,gpu_hours,gib_hours,core_hours,device_hours,cost",
        "team-vision,14.0,560.0,14.0,14.0,35.0",
        "ci,0.5,4.0,0.5,1.0,",
    ]


def test_focus_has_a_row_for_each_hour():
    lines = usage("--since", "3h", "-o", "focus").stdout.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("ChargePeriodStart,ChargePeriodEnd,")
    assert lines[2].startswith("2026-11-28T01:00:00Z,2026-11-28T02:00:00Z,HAMi,NVIDIA,T4,")


def test_no_cell_is_computed_and_no_text_changes_the_terminal():
    key = VISION._replace(model="=1+1\x1b", namespace="@x")
    day = replace(LAST, hours={key: {1: WHOLE}})
    query = UsageQuery(since=TODAY, until=NOW)
    assert ",'=1+1?,GPU share,'@x," in render_focus([day], query)


def test_days_that_cannot_be_read_are_left_out_with_a_note():
    of = objects()
    of[PATH + name_of_day(FIRST.date)] = of[PATH + CURRENT]
    result = usage(of=of)
    assert result.exit_code == 0
    assert "note: hami-usage-2026-11-27 cannot be read and is left out" in result.stderr


@pytest.mark.parametrize(
    ("of", "args", "message"),
    [
        ({}, [], "no usage is recorded in namespace hami-usage"),
        ({PATH + CURRENT: ClusterError("configmaps is forbidden", 403)}, [], "forbidden"),
        ({PATH + CURRENT: b'{"data":{"usage":"1:0:"}}'}, [], "usage: it is incomplete"),
        (None, ["--since", "7"], "--since: expected hours, days or weeks"),
        (None, ["--since", "401d"], "within 400 days"),
        (None, ["--prices", "missing.yaml"], "--prices missing.yaml: No such file"),
        (None, ["--snapshot", "x"], "a snapshot has no usage"),
    ],
)
def test_errors_are_one_line(of, args, message):
    result = usage(*args, of=of)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "since"),
    [("36h", NOW - 36 * HOUR_S), ("7d", NOW - 7 * DAY_S), ("2026-11-27", YESTERDAY)],
)
def test_since(text, since):
    assert parse_since(text, NOW) == since


@pytest.mark.parametrize("text", ["", "d", "0d", "-1d", "1.5d", "٣d", "2026-11-29", "2020-01-01"])
def test_since_that_cannot_be(text):
    with pytest.raises(MalformedInput):
        parse_since(text, NOW)


@pytest.mark.parametrize("text", ["prices: {a: -1}", "price: {}", "prices: {a: x}", "- a"])
def test_prices_that_cannot_be(text):
    with pytest.raises(MalformedInput, match=r"prices\.yaml"):
        parse_prices(text, "prices.yaml")


def test_a_default_price_is_that_of_all_other_models():
    prices = UsagePrices(prices={"A100": 2.0}, default=1.0)
    query = UsageQuery(since=TODAY, until=NOW, prices=prices)
    assert [row.cost for row in make_report([LAST], query).items] == [4.0, 0.5]


FORBIDDEN = ClusterError("configmaps is forbidden", 403)
PART = "/apis/inspect.hami.io/v1alpha1/namespaces/ci/usagerecords/"


def test_a_user_of_one_namespace_asks_the_api_group():
    of = {PATH + CURRENT: FORBIDDEN}
    for path, document in objects().items():
        of[PART + path.removeprefix(PATH)] = document
    result = usage("-n", "ci", "--by", "owner", "-o", "json", of=of)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["items"]
    assert row["name"] == "ci/CronJob/nightly"


@pytest.mark.parametrize(
    ("args", "answer", "message"),
    [
        ([], FORBIDDEN, "to see one namespace alone, name it with -n"),
        (["-n", "ci"], ClusterError("no", 503), "the API group inspect.hami.io says: no"),
        (
            ["-n", "ci"],
            NotFound("there is none", 404),
            "the API group inspect.hami.io says: no usage",
        ),
    ],
)
def test_without_the_right_and_the_api_group_the_user_learns_both(args, answer, message):
    result = usage(*args, of={PATH + CURRENT: FORBIDDEN, PART + CURRENT: answer})
    assert result.exit_code == 2
    assert "configmaps is forbidden" in result.stderr
    assert message in result.stderr


def namespace(name, hours=None):
    annotations = {} if hours is None else {GPU_HOURS: hours}
    return {"metadata": {"name": name, "annotations": annotations}}


def with_namespaces(*namespaces, alone=False):
    """The records, and namespaces: listed, or each *alone*."""
    served = objects()
    if not alone:
        page = {"metadata": {}, "items": namespaces}
        return served | {"/api/v1/namespaces": json.dumps(page).encode()}
    for each in namespaces:
        path = f"/api/v1/namespaces/{each['metadata']['name']}"
        served[path] = json.dumps(each).encode()
    return served


def test_budgets_are_shown_for_their_own_windows():
    """Whatever time the rows are about."""
    of = with_namespaces(
        namespace("team-vision", "10/week"), namespace("ci", "2.5/day"), namespace("x")
    )
    lines = usage("--since", "3h", of=of).stdout.splitlines()
    assert lines[:3] == [
        "NAMESPACE    GPU-HOURS  GIB-HOURS  CORE-HOURS  BUDGET",
        "team-vision  2.0        80         2.0         14.0 of 10 a week",
        "ci           0.5        4          0.5         0.5 of 2.5 a day",
    ]
    document = json.loads(usage("--since", "3h", "-o", "json", of=of).stdout)
    assert document["coveredHours"] == 2.5
    assert document["items"][0]["budget"] == {
        "gpuHours": 10.0,
        "period": "week",
        "since": "2026-11-23T00:00:00Z",
        "until": "2026-11-30T00:00:00Z",
        "usedGpuHours": 14.0,
    }


def test_the_budget_of_one_namespace_is_read_alone():
    of = with_namespaces(namespace("ci", "1/day"), alone=True)
    assert usage("-n", "ci", of=of).stdout.splitlines()[1].endswith("0.5 of 1 a day")


@pytest.mark.parametrize(
    ("of", "note"),
    [
        (with_namespaces(namespace("ci", "many")), "namespace ci counts as without a budget"),
        (objects() | {"/api/v1/namespaces": ClusterError("no", 403)}, "no; budgets are not shown"),
    ],
)
def test_budgets_that_cannot_be_read_are_left_out_with_a_note(of, note):
    result = usage(of=of)
    assert result.exit_code == 0
    assert "BUDGET" not in result.stdout
    assert note in result.stderr


@pytest.mark.parametrize("by", ["owner", "model"])
def test_other_rows_have_no_budgets(by):
    result = usage("--by", by, of=with_namespaces(namespace("ci", "1/day")))
    assert "BUDGET" not in result.stdout


def budget(of):
    """Returns the budget of the namespace ci, as a pod there is explained."""

    def request(method, path, *, query=None):
        answer = of.get(path, NotFound("there is none", 404))
        if isinstance(answer, Exception):
            raise answer
        return answer

    found = read_budget(request, "ci", NOW)
    return None if found is None else budget_sentence(found)


def test_a_pod_is_explained_with_the_budget_of_its_namespace():
    of = with_namespaces(namespace("ci", "2.5/day"), alone=True)
    end = "until 2026-11-29T00:00:00Z."
    assert budget(of) == f"GPU-hours of the namespace's budget: 0.5 of 2.5 a day, {end}"
    by_group = of | {PATH + CURRENT: FORBIDDEN, PART + CURRENT: of[PATH + CURRENT]}
    assert budget(by_group) == budget(of)
    without_records = of | {PATH + CURRENT: FORBIDDEN}
    assert budget(without_records) == f"GPU-hours of the namespace's budget: 2.5 a day, {end}"
    for hours in (None, "many"):
        assert budget(with_namespaces(namespace("ci", hours), alone=True)) is None
    assert budget(objects()) is None
