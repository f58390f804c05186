"""The generated parts of the manifests follow the device configuration."""

import re
import shutil
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from hami.codec.device_config import chart_config, parse_device_config
from hami.codec.keys import CORES_LIMIT, NUMA_BIND, RESIZE, SCHEDULERS_ALONE
from hami.vendors.entry_points import full_catalog
from hami.vendors.vocabulary import Vocabulary
from hami.vendors.wishes import OTHER_PLUGINS
from testing.cases import cases
from testing.cel import parse
from tools import admission
from tools.policies import (
    BASE,
    CLAIM_WEBHOOKS,
    generated_files,
    main,
    node_keys,
    pod_keys,
    render_claim_webhooks,
    render_claims_config,
    render_managed_resources,
    render_match_conditions,
    render_policies,
)

CATALOG = full_catalog(chart_config())
RENAMED = (
    (BASE / "device-config.yaml")
    .read_text()
    .replace("nvidia.com/gpumem", "example.com/mem")
    .replace("nvidia.com/priority", "example.com/turn")
    .replace("commonWord: Ascend910A", "commonWord: Chip9")
)


def test_other_resource_names_and_chips_reach_every_file():
    catalog = full_catalog(parse_device_config(RENAMED, "device-config.yaml"))
    made = [
        render_policies(catalog),
        render_match_conditions(catalog),
        render_managed_resources(catalog),
    ]
    for text in made:
        assert "example.com/mem" in text
        assert "nvidia.com/gpumem'" not in text
    for text in made[:2]:
        assert "'huawei.com/Chip9'" in text
        assert "'huawei.com/Ascend910A'," in text
    assert "huawei.com/Chip9" in pod_keys(catalog)
    assert "priority 0 ('example.com/turn', or" in made[0]
    assert "nvidia.com/priority" not in made[0]


def test_keys_that_a_pattern_covers_are_not_listed():
    assert not [key for key in pod_keys(CATALOG) if re.fullmatch(r"hami\.io/.*-allocated", key)]
    assert not [key for key in node_keys(CATALOG) if key.startswith("hami.io/node-")]


def test_names_fit_into_literals_of_cel():
    names = [
        *pod_keys(CATALOG),
        *node_keys(CATALOG),
        *(name for vendor in CATALOG for name in vendor.resources.names),
    ]
    assert not [name for name in names if not re.fullmatch(r"[\w./-]+", name)]


def test_writes_that_nothing_is_refused_to_end_at_the_match_condition():
    """Those of who has the right, and new pods without anything that hami-placement judges."""

    def expressions(policy, part):
        (spec,) = (
            item["spec"]
            for item in yaml.safe_load_all(render_policies(CATALOG))
            if item["metadata"]["name"] == policy and "validations" in item["spec"]
        )
        return ["".join(entry["expression"].split()) for entry in spec[part]]

    (condition,), (right, *_) = (
        expressions("hami-allocations", part) for part in ("matchConditions", "validations")
    )
    assert condition.endswith("&&!" + right.partition("||")[0])
    assert ".check('write').allowed()" in right
    (condition,), (_, node, priority) = (
        expressions("hami-placement", part) for part in ("matchConditions", "validations")
    )
    assert "object.metadata.?labels['hami.io/webhook'].orValue('')=='ignore'" in condition
    assert node.partition("||")[0].replace("==", "!=") in condition
    assert condition.endswith(
        priority.removeprefix("variables.mirror||!").partition("||authorizer")[0] + ")"
    )


def test_a_device_plugin_writes_no_key_of_schedulers_alone():
    """Each right to write on the own node leaves out these keys, and what the owner of a pod asks for."""
    item = next(
        item
        for item in yaml.safe_load_all(render_policies(CATALOG))
        if item["metadata"]["name"] == "hami-allocations"
    )
    expression = item["spec"]["validations"][0]["expression"]
    _, _, beside = expression.partition(".check('write-on-own-node').allowed()")
    assert set(re.findall(r"'(hami\.io/[a-z-]+)'", beside)) == {*SCHEDULERS_ALONE, RESIZE}
    assert "all(k, pair[0][?k] == pair[1][?k])" in beside


def test_the_expressions_stay_far_below_the_limits_of_the_api_server():
    """An object may have 1.5 MiB, and YAML lines must not break an expression."""
    text = render_policies(CATALOG)
    assert len(text) < 64 * 1024
    assert max(map(len, text.splitlines())) <= 126
    assert all(
        "\n\n" not in variable["expression"]
        for item in yaml.safe_load_all(text)
        for variable in item["spec"].get("variables", ())
    )


def test_the_command_writes_into_a_folder(tmp_path):
    for name in ("webhook.yaml", "scheduler-config.yaml"):
        (tmp_path / name).write_text((BASE / name).read_text())
    config = tmp_path / "device-config.yaml"
    config.write_text(RENAMED)
    done = CliRunner().invoke(
        main, ["--device-config", str(config), str(tmp_path)], catch_exceptions=False
    )
    assert done.exit_code == 0
    assert all("example.com/mem" in path.read_text() for path in generated_files(CATALOG, tmp_path))
    CliRunner().invoke(main, [str(tmp_path)], catch_exceptions=False)
    assert all(
        (tmp_path / path.name).read_text() == path.read_text() for path in generated_files(CATALOG)
    )


@pytest.fixture
def copied(tmp_path):
    """A copy of the manifests."""
    return Path(shutil.copytree(BASE.parent, tmp_path / "manifests"))


def run(*words):
    return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)


PARTIAL = {
    "another vendor": "hygon: {resourceCountName: hygon.com/dcunum}",
    "one of three": "amd: {resourceCountName: amd.com/gpu}\nnvidia: {}",
    "no count": "nvidia: {resourceMemoryName: nvidia.com/gpumem}\nbiren: {resourceCountName: birentech.com/gpu}",
    "count": "nvidia: {resourceCountName: nvidia.com/gpu}",
    "count and priority": "nvidia: {resourceCountName: a.example/b, resourcePriorityName: a.example/c}",
}


def expressions(value):
    """Returns all expressions of CEL in a document, also in the patches of a kustomization."""
    if isinstance(value, dict):
        own = [text for key, text in value.items() if key == "expression" and isinstance(text, str)]
        patches = [
            yaml.safe_load(text)
            for key, text in value.items()
            if key == "patch" and isinstance(text, str)
        ]
        return own + expressions([*value.values(), *patches])
    return [text for item in value for text in expressions(item)] if isinstance(value, list) else []


@pytest.mark.parametrize("text", PARTIAL.values(), ids=PARTIAL)
def test_what_a_device_configuration_leaves_out_is_left_out_and_all_expressions_are_still_some(
    copied, tmp_path, text
):
    (tmp_path / "device-config.yaml").write_text(text)
    done = run("--device-config", tmp_path / "device-config.yaml", copied / "base")
    assert done.exit_code == 0, done.output
    written = [line for line in done.output.splitlines() if line.endswith(".yaml")]
    found = [
        expression
        for path in written
        for document in yaml.safe_load_all(Path(path).read_text())
        for expression in expressions(document)
    ]
    assert len(found) > 20
    for expression in found:
        parse(expression)
    everything = "".join(Path(path).read_text() for path in written)
    assert "'nvidia.com/gpumem'" not in everything
    assert "ignoredByScheduler" in everything


@cases(
    "text, reason",
    (
        "hygon: {resourceCountName: hygon.com/dcunum}",
        "the device configuration has no section nvidia",
    ),
    ("nvidia: {resourceMemoryName: a.example/mem}", "nvidia.resourceCountName is missing"),
    (
        "nvidia: {resourceCountName: a.example/b, strict: true}",
        "nvidia.strict and nvidia.overwriteEnv need",
    ),
)
def test_why_there_are_no_policies_of_admission_is_said(copied, tmp_path, text, reason):
    (tmp_path / "device-config.yaml").write_text(text)
    before = (copied / "components" / "admission-policies" / "policies.yaml").read_text()
    done = run("--device-config", tmp_path / "device-config.yaml", copied / "base")
    assert done.exit_code == 0
    assert f"admission-policies: not written, since {reason}" in done.output
    assert (copied / "components" / "admission-policies" / "policies.yaml").read_text() == before


@cases(
    "content, said",
    (None, "device-config.yaml: No such file or directory"),
    ("", "device-config.yaml: all configurations are empty, expected at least one of nvidia, "),
    ("5", "device-config.yaml: expected a mapping of vendors to their settings: '5'"),
    ("nvidia: [", "device-config.yaml: not YAML in line 1, column 10: "),
    ("nvidia: …", "device-config.yaml: nvidia: expected a mapping: '…'"),
    (
        "nvidia: {resourceCountName: 5}",
        "resourceCountName: expected a resource name such as nvidia.com/gpu: '5'",
    ),
    (
        "nvidia: {defaultGPUNum: -1}",
        "nvidia.defaultGPUNum: expected a whole number from 0 to 2147483647: '-1'",
    ),
)
def test_a_device_configuration_that_cannot_be_used_is_one_line(copied, tmp_path, content, said):
    file = tmp_path / "device-config.yaml"
    if content is not None:
        file.write_text(content)
    done = run("--device-config", file, copied / "base")
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("error: ")
    assert said in done.stderr


@cases(
    "file, content, said",
    ("webhook.yaml", None, "webhook.yaml: No such file or directory"),
    (
        "webhook.yaml",
        "kind: X",
        'webhook.yaml: expected one line that says "Generated by `python -m tools.policies',
    ),
    (
        "scheduler-config.yaml",
        "# Generated by `python -m tools.policies`\n",
        'scheduler-config.yaml: profiles: expected one line such as "- schedulerName: hami-scheduler"',
    ),
)
def test_a_folder_that_cannot_be_used_is_one_line(copied, file, content, said):
    (copied / "base" / file).unlink()
    if content is not None:
        (copied / "base" / file).write_text(content)
    done = run(copied / "base")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("error: ")
    assert said in done.stderr


def test_unknown_keys_of_a_device_configuration_are_named(copied, tmp_path):
    (tmp_path / "device-config.yaml").write_text(
        "hygon: {resourceCountName: hygon.com/dcunum}\nnvdia: {}"
    )
    done = run("--device-config", tmp_path / "device-config.yaml", copied / "base")
    assert done.exit_code == 0
    assert "nvdia: unknown section, skipped" in done.stderr


def test_a_scheduler_of_another_name_has_the_profile_for_claims():
    """As docs/migrate.md says for HAMi's own name."""
    text = (BASE / "scheduler-config.yaml").read_text()
    config = text.replace("schedulerName: hami-scheduler", "schedulerName: other")
    profiles = yaml.safe_load(render_claims_config(config))["profiles"]
    assert [profile["schedulerName"] for profile in profiles] == ["other", "other-claims"]


def test_webhooks_for_claims_follow_the_device_configuration():
    catalog = full_catalog(parse_device_config(RENAMED, "device-config.yaml"))
    text = CLAIM_WEBHOOKS.read_text()
    renamed = render_claim_webhooks(text, catalog)
    assert renamed.count("'example.com/mem'") == 4
    assert "'nvidia.com/gpumem'" not in renamed
    assert renamed.count("'hami.io/claim'") == 2
    assert render_claim_webhooks(renamed, CATALOG) == text


def test_the_policies_of_admission_follow_the_device_configuration():
    config = parse_device_config(
        RENAMED.replace("  defaultGPUNum: 1", "  defaultGPUNum: 2"), "device-config.yaml"
    )
    made = admission.generated_files(full_catalog(config), config.nvidia)
    policies, webhook = (
        made[admission.FOLDER / "policies.yaml"],
        made[admission.FOLDER / "webhook.yaml"],
    )
    assert "'example.com/mem'" in policies
    assert "nvidia.com/gpumem'" not in policies
    assert 'expression: "2"' in policies
    assert "nvidia.com" not in webhook
    assert "example.com" not in webhook
    assert "'huawei.com/Ascend910A'" in webhook
    assert not admission.needs_webhook(config.nvidia)
    strict = parse_device_config(
        RENAMED.replace("nvidia:\n", "nvidia:\n  strict: true\n", 1), "device-config.yaml"
    )
    assert admission.needs_webhook(strict.nvidia)


def test_a_resource_that_is_left_out_is_in_no_policy_of_admission():
    config = parse_device_config(
        "nvidia: {resourceCountName: nvidia.com/gpu, defaultGPUNum: 1}", "device-config.yaml"
    )
    text = admission.generated_files(full_catalog(config), config.nvidia)[
        admission.FOLDER / "policies.yaml"
    ]
    name = r"[a-z.]*nvidia\.com/[a-z-]+"
    names = set(re.findall(f"'({name})'", text))
    annotations = Vocabulary(full_catalog(config)).forms_of("NVIDIA").keys()
    others = {start for start in OTHER_PLUGINS if re.fullmatch(name, start)}
    assert names == {"nvidia.com/gpu", CORES_LIMIT, NUMA_BIND, *annotations, *others}
    assert not re.search(r"'' in |\['']|Key\(''", text)
