from __future__ import annotations

import pytest

from hami.codec.health import (
    MAX_DEVICES,
    MAX_TEXT,
    DeviceHealth,
    parse_device_health,
    render_device_health,
)

RESET = DeviceHealth(
    cause="the driver asks: reset the GPU (after XID 95)",
    remedy="reset the GPU",
    since=1795869679,
    harms_pods=True,
)
STICKY = DeviceHealth(cause="XID 79", remedy="reset the GPU", since=1, driver="0123456789abcdef")


def test_the_wire() -> None:
    assert render_device_health({"GPU-1": RESET}) == (
        '{"GPU-1":{"cause":"the driver asks: reset the GPU (after XID 95)","remedy":"reset the GPU",'
        '"since":1795869679,"harmsPods":true}}'
    )


def test_devices_are_read_as_they_were_written() -> None:
    devices = {"GPU-2": RESET, "GPU-1": STICKY, "GPU-3": DeviceHealth(cause="")}
    assert parse_device_health(render_device_health(devices)) == devices


def test_a_node_without_unhealthy_devices_has_no_text() -> None:
    assert render_device_health({}) is None
    assert parse_device_health(None) == {}


@pytest.mark.parametrize("cause", ["x" * 5000, "\x01" * 5000, "ä" * 5000, "€" * 300])
@pytest.mark.parametrize("number", [1, 8, 16, 17, 256])
def test_the_text_is_bounded_and_names_causes_and_remedies(cause: str, number: int) -> None:
    remedy = "r" * 50
    health = DeviceHealth(
        cause=cause, remedy=remedy, since=1795869679, harms_pods=True, driver="d" * 16
    )
    devices = {f"GPU-{i:03}-4f9b-11ee-be56-0242ac12000{i % 10}": health for i in range(number)}
    text = render_device_health(devices)
    assert text is not None
    assert len(text.encode()) <= MAX_TEXT
    parsed = parse_device_health(text)
    assert list(parsed) == sorted(devices)[:MAX_DEVICES]
    assert {entry.remedy for entry in parsed.values()} == {remedy}
    assert all(cause.startswith(entry.cause) for entry in parsed.values())
    assert all(entry.cause for entry in parsed.values())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"GPU-1": {}}',
        '{"GPU-1": null}',
        '{"": {"cause": "x"}}',
        '{"GPU-1": {"cause": 79}}',
        '{"GPU-1": {"cause": "x", "since": -1}}',
        '{"GPU-1": {"cause": "x", "since": 1e30}}',
        '{"GPU-1": {"cause": "\ud800"}}',
        "[" * 4000,
        '{"GPU-1": {"cause": "x", "pad": "' + "y" * MAX_TEXT + '"}}',
        "{" + ",".join(f'"GPU-{i}": {{"cause": "x"}}' for i in range(MAX_DEVICES + 1)) + "}",
    ],
)
def test_a_text_that_cannot_be_read_names_nothing(text: str) -> None:
    assert parse_device_health(text) == {}


def test_unknown_and_missing_fields_are_permitted() -> None:
    text = '{"GPU-1": {"cause": "x", "remedy": null, "new": [1]}}'
    assert parse_device_health(text) == {"GPU-1": DeviceHealth(cause="x")}
