"""Settings of the device plugin, and their precedence."""

import json

import pytest

from hami.codec.device_config import chart_config
from hami.errors import HamiError, MalformedInput
from hami.plugin.settings import PluginSettings, read_plugin_settings
from testing.cases import cases


@pytest.fixture
def files(tmp_path):
    """Writes files and gives the flags that name them."""

    def write(yaml=None, node=None):
        given = {}
        if yaml is not None:
            (tmp_path / "device-config.yaml").write_text(yaml)
            given["device_config_file"] = str(tmp_path / "device-config.yaml")
        if node is not None:
            (tmp_path / "config.json").write_text(
                node if isinstance(node, str) else json.dumps({"nodeconfig": node})
            )
            given["node_config_file"] = str(tmp_path / "config.json")
        return given

    return write


def value_of(settings, field):
    """The value of a field of the settings, or of their section nvidia."""
    return getattr(settings if hasattr(settings, field) else settings.nvidia, field)


def read(given=(), environ=(), **flags):
    return read_plugin_settings({"node": "n1"} | dict(given) | flags, dict(environ))


def test_the_chart_applies_without_any_setting():
    settings = read()
    assert settings == PluginSettings(node="n1", log_level="1", nvidia=chart_config().nvidia)
    assert settings.devices.nvidia.resource_count_name == "nvidia.com/gpu"


def test_the_name_of_the_node_is_required():
    with pytest.raises(HamiError, match="--node-name, or NODE_NAME"):
        read_plugin_settings({}, {})


@cases(
    "environ, node",
    ({"NODE_NAME": "a"}, "a"),
    ({"NodeName": "b", "NODE_NAME": "a"}, "b"),
    ({"NODE_NAME": "a", "NodeName": ""}, "a"),
)
def test_the_environment_names_the_node(environ, node):
    assert read_plugin_settings({}, environ).node == node


SECTION = (
    "nvidia: {resourceCountName: nvidia.com/vgpu, deviceSplitCount: 4, deviceMemoryScaling: 1.5, "
    "deviceCoreScaling: 2, preConfiguredDeviceMemory: 1000, libCudaLogLevel: 3, enableNumaTopology: true, "
    "disableCoreLimit: true}"
)


def test_the_device_configuration_is_read(files):
    settings = read(files(SECTION))
    assert (settings.resource, settings.log_level) == ("nvidia.com/vgpu", "3")
    nvidia = settings.nvidia
    assert (
        nvidia.device_split_count,
        nvidia.device_memory_scaling,
        nvidia.device_core_scaling,
    ) == (4, 1.5, 2.0)
    assert (
        nvidia.preconfigured_device_memory,
        nvidia.enable_numa_topology,
        nvidia.disable_core_limit,
    ) == (1000, True, True)


# The six flags that are dead upstream
@cases(
    "field, flag, variable, text, of_environment, of_file",
    ("device_split_count", 2, "DEVICE_SPLIT_COUNT", "3", 3, 4),
    ("device_memory_scaling", 2.0, "DEVICE_MEMORY_SCALING", "3", 3.0, 1.5),
    ("device_core_scaling", 1.5, "DEVICE_CORES_SCALING", "1.25", 1.25, 2.0),
    ("disable_core_limit", False, "DISABLE_CORE_LIMIT", "0", False, True),
)
def test_flags_override_environment_and_file(
    files, field, flag, variable, text, of_environment, of_file
):
    given = files(SECTION)
    assert value_of(read(given), field) == of_file
    assert value_of(read(given, {variable: text}), field) == of_environment
    assert value_of(read(given, {variable: text}, **{field: flag}), field) == flag


def test_the_flag_s_resource_is_the_vendor_s_too(files):
    settings = read(files(SECTION), resource="nvidia.com/part")
    assert settings.resource == "nvidia.com/part"
    assert settings.devices.nvidia.resource_count_name == "nvidia.com/part"


def test_a_file_without_a_resource_name_is_refused(files):
    with pytest.raises(HamiError, match="no resourceCountName"):
        read(files("hygon: {resourceCountName: hygon.com/dcunum}"))


@cases(
    "variable, text, field, value",
    ("HOOK_PATH", "/opt", "hook_path", "/opt"),
    ("NVIDIA_DRIVER_ROOT", "/run/nvidia", "driver_root", "/run/nvidia"),
    ("NVIDIA_DRIVER_ROOT", "/run/nvidia", "dev_root", "/run/nvidia"),
    ("NVIDIA_DEV_ROOT", "/dev/root", "dev_root", "/dev/root"),
    ("PASS_DEVICE_SPECS", "true", "pass_device_specs", True),
    ("DEVICE_LIST_STRATEGY", "envvar,cdi-cri", "list_strategies", ("envvar", "cdi-cri")),
    ("DEVICE_ID_STRATEGY", "index", "id_strategy", "index"),
    ("GDRCOPY_ENABLED", "1", "gdrcopy", True),
    ("GDS_ENABLED", "true", "gds", True),
    ("MOFED_ENABLED", "t", "mofed", True),
    ("KUBELET_SOCKET", "/k/kubelet.sock", "kubelet_socket", "/k/kubelet.sock"),
    ("CDI_ANNOTATION_PREFIX", "x/", "cdi_prefix", "x/"),
    ("IMEX_CHANNEL_IDS", "0", "imex_channels", (0,)),
    ("IMEX_CHANNEL_IDS", "[]", "imex_channels", ()),
    ("ENABLE_TOPOLOGY_SCORE", "true", "topology_score", True),
    ("ENABLE_TOPOLOGY_SCORE", "True", "topology_score", False),
)
def test_the_environment_sets(variable, text, field, value):
    assert value_of(read((), {variable: text}), field) == value


@cases(
    "variable, text",
    ("DEVICE_SPLIT_COUNT", "0"),
    ("DEVICE_SPLIT_COUNT", "two"),
    ("DEVICE_MEMORY_SCALING", "-1"),
    ("DEVICE_MEMORY_SCALING", "nan"),
    ("DEVICE_LIST_STRATEGY", "cdi"),
    ("DEVICE_ID_STRATEGY", "name"),
    ("MIG_STRATEGY", "all"),
    ("IMEX_CHANNEL_IDS", "1"),
    ("PASS_DEVICE_SPECS", "yes"),
    ("DEVICE_DISCOVERY_STRATEGY", "tegra"),
    ("DP_DISABLE_HEALTHCHECKS", "x"),
)
def test_a_malformed_variable_is_refused_by_name(variable, text):
    with pytest.raises(MalformedInput, match=f"environment variable {variable}"):
        read((), {variable: text})


def test_flags_and_environment_override_the_flags_section_of_nvidia_s_plugin(files):
    yaml = (
        SECTION
        + """
version: v1
flags: {migStrategy: single, failOnInitError: false, nvidiaDriverRoot: /drv,
        plugin: {passDeviceSpecs: true, deviceListStrategy: [envvar, volume-mounts], deviceIDStrategy: index}}
imex: {channelIDs: [0], required: true}
"""
    )
    settings = read(files(yaml))
    config = settings
    assert (settings.mig_strategy, settings.fail_on_init_error, settings.imex_required) == (
        "single",
        False,
        True,
    )
    assert (config.driver_root, config.pass_device_specs, config.imex_channels) == (
        "/drv",
        True,
        (0,),
    )
    assert (config.list_strategies, config.id_strategy) == (("envvar", "volume-mounts"), "index")
    assert read(files(yaml), {"DEVICE_ID_STRATEGY": "uuid"}).id_strategy == "uuid"


def test_a_wrong_flag_in_the_file_is_refused_by_its_place(files):
    with pytest.raises(MalformedInput, match=r"flags\.deviceIDStrategy"):
        read(files(SECTION + "\nflags: {plugin: {deviceIDStrategy: name}}"))


@pytest.mark.parametrize(
    "entry, field, value",
    [
        ({"devicesplitcount": 5}, "device_split_count", 5),
        ({"devicesplitcount": 0}, "device_split_count", 4),
        ({"devicememoryscaling": 3}, "device_memory_scaling", 3.0),
        ({"devicecorescaling": 1.1}, "device_core_scaling", 1.1),
        ({"preconfigureddevicememory": 7}, "preconfigured_device_memory", 7),
        ({"libcudaloglevel": "0"}, "log_level", "0"),
        ({"libcudaloglevel": 4}, "log_level", "4"),
        ({"libcudaloglevel": ""}, "log_level", "3"),
        ({"enablenumatopology": False}, "enable_numa_topology", False),
        ({"enablegetpreferredallocation": True}, "aligned", True),
        ({"operatingmode": ""}, "operating_mode", "hami-core"),
        ({"migstrategy": "none"}, "operating_mode", "hami-core"),
        ({"filterdevices": {"uuid": ["GPU-a"], "index": [1, 2]}}, "filtered_uuids", ("GPU-a",)),
        ({"filterdevices": {"uuid": [], "index": [1, 2]}}, "filtered_indexes", (1, 2)),
        ({"claimDevices": {"uuid": ["GPU-a"], "index": [1, 2]}}, "claimed_uuids", ("GPU-a",)),
        ({"claimdevices": {"index": [1, 2]}}, "claimed_indexes", (1, 2)),
        ({"DeviceSplitCount": 6}, "device_split_count", 6),
    ],
    ids=str,
)
def test_the_node_s_entry_overrides_the_file(files, entry, field, value):
    assert value_of(read(files(SECTION, [{"name": "n1"} | entry])), field) == value


def test_the_node_s_entry_overrides_flags(files):
    given = files(SECTION, [{"name": "n1", "devicesplitcount": 5}])
    assert (
        read(given, {"DEVICE_SPLIT_COUNT": "8"}, device_split_count=9).nvidia.device_split_count
        == 5
    )


def test_an_empty_list_of_a_later_entry_overrides_that_of_an_earlier_one(files):
    entries = [
        {"name": "n1", "filterdevices": {"uuid": ["GPU-a"], "index": [1]}},
        {"name": "n1", "filterdevices": {"uuid": []}},
    ]
    settings = read(files(SECTION, entries))
    assert (settings.filtered_uuids, settings.filtered_indexes) == ((), (1,))


def test_entries_of_the_node_are_applied_in_their_order_and_others_not_at_all(files):
    entries = [
        {"name": "n1", "devicesplitcount": 5, "devicememoryscaling": 2},
        {"name": "n2", "devicesplitcount": 7},
        {"name": "n1", "devicesplitcount": 6},
        {"name": "n"},
    ]
    nvidia = read(files(SECTION, entries)).nvidia
    assert (nvidia.device_split_count, nvidia.device_memory_scaling) == (6, 2.0)


@cases(
    "node, says",
    ("{", "config.json: not JSON"),
    ('{"nodeconfig": {}}', "config.json: nodeconfig: expected a list"),
    ([{"name": "n1", "devicesplitcount": "5"}], "devicesplitcount"),
    (
        [{"name": "n1", "devicesplitcount": -5}],
        r"nodeconfig\[0\]\.devicesplitcount: expected a whole number",
    ),
    ([{"name": "n1", "devicememoryscaling": -1}], "devicememoryscaling: expected a number above 0"),
    ([{"name": "n1", "operatingmode": "mps"}], "operatingmode: expected hami-core or mig"),
)
def test_a_node_configuration_that_cannot_be_used_is_refused(files, node, says):
    with pytest.raises(MalformedInput, match=says):
        read(files(SECTION, node))


def test_a_named_node_configuration_must_exist(tmp_path):
    with pytest.raises(HamiError, match="No such file"):
        read((), {}, node_config_file=str(tmp_path / "config.json"))


ALLOWING = (
    SECTION.removesuffix("}") + ", migProfileAllowlist: [{models: [A100], profiles: [1g.10gb]}]}"
)


def test_mode_mig_needs_an_allowlist(files):
    node = [{"name": "n1", "operatingmode": "mig"}]
    assert read(files(ALLOWING, node)).operating_mode == "mig"
    with pytest.raises(
        HamiError, match="the node configuration says mig, .* no nvidia.migProfileAllowlist"
    ):
        read(files(SECTION, node))


def test_mode_mig_cannot_be_said_in_the_older_text(files):
    with pytest.raises(HamiError, match="--register-format csv"):
        read(files(ALLOWING), operating_mode="mig", register_format="csv")


def test_paths_are_absolute():
    with pytest.raises(MalformedInput, match="--hook-path"):
        read((), {}, hook_path="usr/local")


@pytest.mark.parametrize("mode, noted", [("hami-core", False), ("mig", True)])
def test_mig_strategy_is_skipped_in_mode_mig(files, mode, noted):
    allowlist = "nvidia: {resourceCountName: a/b, migProfileAllowlist: [{models: [A100], profiles: [1g.10gb]}]}"
    notes = read(files(allowlist), mig_strategy="single", operating_mode=mode).notes
    assert any("--mig-strategy single: skipped" in note for note in notes) is noted


def test_the_record_s_own_defaults_are_what_help_shows():
    assert (
        PluginSettings(node="").nvidia.device_split_count == read().nvidia.device_split_count == 10
    )
