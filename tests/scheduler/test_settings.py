"""Settings of flags, environment and device configuration."""

import pytest

from hami.codec.device_config import Key, chart_config
from hami.errors import HamiError, MalformedInput
from hami.runtime.options import Address, Flag, Value, parse_address, parse_boolean, parse_seconds
from hami.runtime.settings import parse_device_policy_flag
from hami.scheduler.settings import Settings, read_settings
from testing.cases import cases


def test_nothing_given_means_the_defaults():
    settings = read_settings({}, {})
    assert settings == Settings()
    assert settings.devices == chart_config()
    assert settings.devices.nvidia.resource_count_name == "nvidia.com/gpu"
    assert (settings.node_lock_timeout, settings.pod_namespace) == (300.0, "kube-system")


def test_what_is_given_holds():
    settings = read_settings(
        {"leader_elect": True, "kube_qps": 50.0}, {"POD_NAME": "hami-1", "POD_NAMESPACE": "gpu"}
    )
    assert settings == Settings(
        leader_elect=True, kube_qps=50.0, pod_name="hami-1", pod_namespace="gpu"
    )


@cases(
    "given, environ, seconds",
    ("neither", {}, {}, 300.0),
    ("empty", {}, {"HAMI_NODELOCK_EXPIRE": ""}, 300.0),
    ("environment", {}, {"HAMI_NODELOCK_EXPIRE": "90s"}, 90.0),
    ("flag", {"node_lock_timeout": 60.0}, {"HAMI_NODELOCK_EXPIRE": "90s"}, 60.0),
    (
        "flag that says the default",
        {"node_lock_timeout": 300.0},
        {"HAMI_NODELOCK_EXPIRE": "90s"},
        300.0,
    ),
)
def test_the_lock_expires_by_flag_else_environment_else_five_minutes(given, environ, seconds):
    assert read_settings(given, environ).node_lock_timeout == seconds


@pytest.mark.parametrize("text", ["soon", "0s", "-5m"])
def test_a_bad_expiry_in_the_environment_is_named(text):
    with pytest.raises(MalformedInput, match="environment variable HAMI_NODELOCK_EXPIRE: expected"):
        read_settings({}, {"HAMI_NODELOCK_EXPIRE": text})


def test_a_typing_error_in_a_field_is_a_bug():
    with pytest.raises(TypeError, match="leader_elected"):
        read_settings({"leader_elected": True}, {})


def test_the_device_configuration_is_read(tmp_path):
    path = tmp_path / "device-config.yaml"
    path.write_text("nvidia: {resourceCountName: example.com/gpu}")
    settings = read_settings({"device_config_file": str(path)}, {})
    assert settings.devices.nvidia.resource_count_name == "example.com/gpu"
    assert settings.devices.nvidia.resource_memory_name == ""


RESOURCE = Value("name", str)
CONFIG_FLAGS = [
    (Flag("--dcu-name", type=RESOURCE, key=Key("hygon", "resourceCountName")), "a.b/dcu"),
    (
        Flag(
            "--ascend310p-name",
            type=RESOURCE,
            key=Key("vnpus.configs", "resourceName", "Ascend310P"),
            requires="--enable-ascend",
        ),
        "a.b/npu",
    ),
    (
        Flag(
            "--iluvatar-name",
            type=RESOURCE,
            key=Key("iluvatars", "resourceCountName", ""),
            requires="--enable-iluvatar",
        ),
        "a.b/gpu",
    ),
]


def test_flags_stand_in_for_the_device_configuration():
    devices = read_settings({"enable_ascend": True}, {}, config_flags=CONFIG_FLAGS).devices
    assert devices.names["DCU"].count == "a.b/dcu"
    assert {chip.common_word: chip.names.count for chip in devices.ascends}[
        "Ascend310P"
    ] == "a.b/npu"
    assert devices.notes == ("--iluvatar-name: requires --enable-iluvatar, skipped",)


def test_flags_that_name_what_is_switched_off_have_no_say():
    devices = read_settings({"enable_ascend": False}, {}, config_flags=CONFIG_FLAGS).devices
    assert devices.ascends == chart_config().ascends
    assert devices.notes == (
        "--ascend310p-name: requires --enable-ascend, skipped",
        "--iluvatar-name: requires --enable-iluvatar, skipped",
    )


def test_what_is_switched_on_and_could_mean_several_chips_is_refused():
    with pytest.raises(MalformedInput, match="--iluvatar-name: it could mean MR-V100, MR-V50"):
        read_settings({"enable_iluvatar": True}, {}, config_flags=CONFIG_FLAGS)


def test_sections_that_third_parties_read_are_known(tmp_path):
    path = tmp_path / "device-config.yaml"
    path.write_text("acme: {count: acme.com/gpu}")
    devices = read_settings({"device_config_file": str(path)}, {}, known=["acme"]).devices
    assert (devices.extra_sections, devices.notes) == ({"acme": {"count": "acme.com/gpu"}}, ())


@cases(
    "content, problem",
    (None, "No such file or directory"),
    (b"\xff\xfe", "not UTF-8 text"),
    (b"", "all configurations are empty"),
    (b"nvidia: {memoryFactor: '1'}", "nvidia.memoryFactor"),
)
def test_a_device_configuration_that_cannot_be_used_is_named(tmp_path, content, problem):
    path = tmp_path / "device-config.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(HamiError) as caught:
        read_settings({"device_config_file": str(path)}, {})
    assert str(path) in str(caught.value)
    assert problem in str(caught.value)


@cases(
    "given, problem",
    ({"over_budget": "refuse"}, "--over-budget=refuse without --usage-namespace"),
    (
        {"over_budget": "demote", "usage_namespace": "hami-usage"},
        "--over-budget=demote without --over-budget-priority-class",
    ),
    (
        {"over_budget_priority_class": "low"},
        "--over-budget-priority-class=low with --over-budget=warn: expected --over-budget=demote",
    ),
    ({"cert_file": "a"}, "--cert_file without --key_file"),
    ({"key_file": "a"}, "--key_file without --cert_file"),
    ({"client_ca_file": "a"}, "--client-ca-file without --cert_file"),
    (
        {"extender_bind_address": Address("", 1)},
        "--extender-bind-address=:1: expected a loopback address",
    ),
    (
        {"extender_bind_address": Address("10.0.0.1", 1)},
        "--extender-bind-address=10.0.0.1:1: expected a loopback",
    ),
    ({"node_lock_timeout": 0.0}, "--node-lock-timeout"),
    ({"self_signed_cert_dir": "d", "cert_file": "a"}, "--self-signed-cert-dir with --cert_file"),
    ({"self_signed_cert_dir": "d", "key_file": "a"}, "--self-signed-cert-dir with --key_file"),
    ({"self_signed_cert_lifetime": 19.0}, "--self-signed-cert-lifetime: expected 20s or more"),
    (
        {"self_signed_cert_lifetime": 60.0, "self_signed_ca_lifetime": 59.0},
        "no more than --self-signed-ca-lifetime",
    ),
)
def test_settings_that_do_not_go_together_are_refused(given, problem):
    with pytest.raises(HamiError, match=problem):
        read_settings(given, {})


def test_a_certificate_of_our_own_is_one_file_of_its_folder():
    settings = read_settings({"self_signed_cert_dir": "/certs", "client_ca_file": "ca"}, {})
    assert settings.cert_file == settings.key_file == "/certs/tls.pem"


@cases(
    "text, host, port",
    ("127.0.0.1:8080", "127.0.0.1", 8080),
    (":9395", "", 9395),
    ("[::1]:443", "::1", 443),
    ("[::]:0", "::", 0),
    ("localhost:80", "localhost", 80),
)
def test_addresses(text, host, port):
    assert parse_address(text) == (host, port)
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    "text", ["", "8080", "host", "host:", "host:http", "host:-1", "host:65536", "::1:443", "h:٣"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(MalformedInput, match="expected host:port"):
        parse_address(text)


def test_an_address_is_what_sockets_take():
    assert tuple(Address("127.0.0.1", 80)) == ("127.0.0.1", 80)


@cases(
    "text, value",
    *((word, True) for word in ("1", "t", "T", "TRUE", "true", "True")),
    *((word, False) for word in ("0", "f", "F", "FALSE", "false", "False")),
)
def test_booleans_are_go_s(text, value):
    assert parse_boolean(text) is value


@pytest.mark.parametrize("text", ["", "yes", "on", "tRUE", "2", " true"])
def test_other_words_are_no_booleans(text):
    with pytest.raises(MalformedInput, match="true or false"):
        parse_boolean(text)


def test_seconds_are_not_negative():
    assert parse_seconds("1m30s") == 90.0
    assert parse_seconds("0") == 0.0
    with pytest.raises(MalformedInput):
        parse_seconds("-1s")


@pytest.mark.parametrize(
    "text", ["spread", "binpack", "topology-aware", "mutex,spread", "binpack, numa"]
)
def test_device_policies(text):
    assert parse_device_policy_flag(text) == text


@pytest.mark.parametrize("text", ["", "Spread", "random", "spread,", "spread;numa"])
def test_other_words_are_no_device_policies(text):
    with pytest.raises(MalformedInput, match="expected binpack, spread"):
        parse_device_policy_flag(text)
