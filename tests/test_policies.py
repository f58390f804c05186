"""The generated parts of the manifests follow the device configuration."""

import re

import yaml
from click.testing import CliRunner

from hami.codec.device_config import chart_config, parse_device_config
from hami.codec.keys import CORES_LIMIT, RESIZE, SCHEDULERS_ALONE
from hami.vendors.entry_points import full_catalog
from tools import admission
from tools.policies import (
    BASE,
    generated_files,
    main,
    node_keys,
    pod_keys,
    render_managed_resources,
    render_match_conditions,
    render_policies,
)

CATALOG = full_catalog(chart_config())
RENAMED = (BASE / "device-config.yaml").read_text().replace("nvidia.com/gpumem", "example.com/mem").replace(
    "nvidia.com/priority", "example.com/turn").replace("commonWord: Ascend910A", "commonWord: Chip9")


def test_other_resource_names_and_chips_reach_every_file():
    catalog = full_catalog(parse_device_config(RENAMED, "device-config.yaml"))
    made = [render_policies(catalog), render_match_conditions(catalog), render_managed_resources(catalog)]
    for text in made:
        assert "example.com/mem" in text and "nvidia.com/gpumem'" not in text
    for text in made[:2]:
        assert "'huawei.com/Chip9'" in text and "'huawei.com/Ascend910A'," in text  # a key, and still a resource
    assert "huawei.com/Chip9" in pod_keys(catalog)
    assert "priority 0 ('example.com/turn', or" in made[0] and "nvidia.com/priority" not in made[0]


def test_keys_that_a_pattern_covers_are_not_listed():
    assert not [key for key in pod_keys(CATALOG) if re.fullmatch(r"hami\.io/.*-allocated", key)]
    assert not [key for key in node_keys(CATALOG) if key.startswith("hami.io/node-")]


def test_names_fit_into_literals_of_cel():
    names = [*pod_keys(CATALOG), *node_keys(CATALOG), *(name for vendor in CATALOG for name in vendor.resources.names)]
    assert not [name for name in names if not re.fullmatch(r"[\w./-]+", name)]


def test_writes_that_nothing_is_refused_to_end_at_the_match_condition():
    """Those of who has the right, and new pods without anything that hami-placement judges."""
    def expressions(policy, part):
        (spec,) = (item["spec"] for item in yaml.safe_load_all(render_policies(CATALOG))
                   if item["metadata"]["name"] == policy and "validations" in item["spec"])
        return ["".join(entry["expression"].split()) for entry in spec[part]]

    (condition,), (right, *_) = (expressions("hami-allocations", part) for part in ("matchConditions", "validations"))
    assert condition.endswith("&&!" + right.partition("||")[0]) and ".check('write').allowed()" in right
    (condition,), (_, node, priority) = (
        expressions("hami-placement", part) for part in ("matchConditions", "validations"))
    assert "object.metadata.?labels['hami.io/webhook'].orValue('')=='ignore'" in condition
    assert node.partition("||")[0].replace("==", "!=") in condition
    assert condition.endswith(priority.removeprefix("variables.mirror||!").partition("||authorizer")[0] + ")")


def test_a_device_plugin_writes_no_key_of_schedulers_alone():
    """Each right to write on the own node leaves out these keys, and what the owner of a pod asks for."""
    item = next(item for item in yaml.safe_load_all(render_policies(CATALOG))
                if item["metadata"]["name"] == "hami-allocations")
    expression = item["spec"]["validations"][0]["expression"]
    _, _, beside = expression.partition(".check('write-on-own-node').allowed()")
    assert set(re.findall(r"'(hami\.io/[a-z-]+)'", beside)) == {*SCHEDULERS_ALONE, RESIZE}
    assert "all(k, pair[0][?k] == pair[1][?k])" in beside


def test_the_expressions_stay_far_below_the_limits_of_the_api_server():
    """An object may have 1.5 MiB, and YAML lines must not break an expression."""
    text = render_policies(CATALOG)
    assert len(text) < 64 * 1024
    assert max(map(len, text.splitlines())) <= 126
    assert all("\n\n" not in variable["expression"] for item in yaml.safe_load_all(text)
               for variable in item["spec"].get("variables", ()))


def test_the_command_writes_into_a_folder(tmp_path):
    for name in ("webhook.yaml", "scheduler-config.yaml"):
        (tmp_path / name).write_text((BASE / name).read_text())
    config = tmp_path / "device-config.yaml"
    config.write_text(RENAMED)
    done = CliRunner().invoke(main, ["--device-config", str(config), str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    assert all("example.com/mem" in path.read_text() for path in generated_files(CATALOG, tmp_path))
    CliRunner().invoke(main, [str(tmp_path)], catch_exceptions=False)
    assert all((tmp_path / path.name).read_text() == path.read_text() for path in generated_files(CATALOG))


def test_the_policies_of_admission_follow_the_device_configuration():
    config = parse_device_config(RENAMED.replace("  defaultGPUNum: 1", "  defaultGPUNum: 2"), "device-config.yaml")
    made = admission.generated_files(full_catalog(config), config.nvidia)
    policies, webhook = made[admission.FOLDER / "policies.yaml"], made[admission.FOLDER / "webhook.yaml"]
    assert "'example.com/mem'" in policies and "nvidia.com/gpumem'" not in policies and 'expression: "2"' in policies
    assert "nvidia.com" not in webhook and "example.com" not in webhook and "'huawei.com/Ascend910A'" in webhook
    assert not admission.needs_webhook(config.nvidia)
    strict = parse_device_config(RENAMED.replace("nvidia:\n", "nvidia:\n  strict: true\n", 1), "device-config.yaml")
    assert admission.needs_webhook(strict.nvidia)


def test_a_resource_that_is_left_out_is_in_no_policy_of_admission():
    config = parse_device_config("nvidia: {resourceCountName: nvidia.com/gpu, defaultGPUNum: 1}", "device-config.yaml")
    text = admission.generated_files(full_catalog(config), config.nvidia)[admission.FOLDER / "policies.yaml"]
    names = set(re.findall(r"'([a-z.]*nvidia\.com/[a-z-]+)'", text))
    assert names == {"nvidia.com/gpu", CORES_LIMIT} and not re.search(r"'' in |\['']|Key\(''", text)
