"""The part of one namespace of the records of usage."""

import json
from dataclasses import replace

import pytest

from hami.codec.config_maps import render_config_map
from hami.codec.usage_objects import (
    CURRENT,
    parse_current,
    parse_day_data,
    parse_owners_data,
    render_current,
)
from hami.dashboard.errors import PageError
from hami.dashboard.usage_records import UsageRecords
from hami.errors import MalformedInput
from tests.inspect.test_usage import CI, FIRST, LAST, SUMS, objects


@pytest.fixture
def records():
    return UsageRecords(lambda method, path: objects()[path], "hami-usage")


def test_the_current_record_has_one_namespace(records):
    part = parse_current(records.of("ci", CURRENT))
    assert part.settled == SUMS.settled
    assert part.day.hours == {CI: LAST.hours[CI]}
    assert {key.namespace for key in part.day.owners} == {"ci"}
    assert part.day.gaps == LAST.gaps


def test_a_day_has_one_namespace(records):
    name = f"hami-usage-{FIRST.date}"
    assert parse_day_data(records.of("team-vision", name), FIRST.start).hours == FIRST.hours
    part = parse_day_data(records.of("ci", name), FIRST.start)
    assert part.hours == {}
    assert part.recorded_from == FIRST.recorded_from


def test_workloads_are_those_of_one_namespace(records):
    name = f"hami-usage-owners-{FIRST.date}"
    assert parse_owners_data(records.of("team-vision", name), FIRST.start) == FIRST.owners
    assert parse_owners_data(records.of("ci", name), FIRST.start) == {}


def test_totals_of_others_are_left_out():
    sums = replace(SUMS, totals=SUMS.counters())
    assert {key.namespace for key in sums.totals} == {"ci", "team-vision"}
    made = render_current("hami-usage", "1", sums)
    wire = json.dumps(render_config_map(made, {})).encode()
    part = parse_current(UsageRecords(lambda method, path: wire, "x").of("ci", CURRENT))
    assert {key.namespace for key in part.totals} == {"ci"}


def test_an_edited_record_is_an_error():
    wire = b'{"data": {"usage": "1:0:"}}'
    with pytest.raises(MalformedInput):
        UsageRecords(lambda method, path: wire, "x").of("ci", CURRENT)


def test_without_records_there_is_no_answer():
    with pytest.raises(PageError, match="--usage-namespace") as caught:
        UsageRecords(lambda method, path: b"", "").of("ci", CURRENT)
    assert caught.value.status == 404
