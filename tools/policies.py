"""Parts of the manifests that follow from the scheduler's keys and the catalog of vendors.

``python -m tools.policies`` writes the policies of the API server, the ``matchConditions`` of the webhooks and the
``managedResources`` of kube-scheduler, and from its configuration that of the component ``dra-allocate``. With
``--device-config`` they have the resource names of that device configuration. ``python -m tools.generate`` writes all
generated files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from string import Template

import click

from hami.cli.client import show_note
from hami.cli.group import Command
from hami.codec.device_config import DeviceConfig, chart_config, parse_device_config
from hami.codec.health import CONDITION
from hami.codec.keys import (
    ALLOCATION_MODE,
    ALLOCATION_PATTERN,
    CLAIM_ALLOCATION_MODES,
    CLAIM_RESOURCE,
    DEVICE_HEALTH,
    GPU_HOURS,
    GPU_LABELS,
    MAKE_ROOM,
    MEMORY_WALL,
    NODE_LOCK,
    OVERWRITE_ENV,
    OVERWRITE_ENV_CONTAINERS,
    PREEMPTIBLE,
    RESIZE,
    ROOM,
    SCHEDULER_OWNED,
    SCHEDULERS_ALONE,
    is_scheduler_owned,
)
from hami.codec.pods import DISRUPTION_TARGET, PREEMPTED, REJECTED
from hami.errors import MalformedInput
from hami.runtime.options import read_text
from hami.vendors.capacity import capacity_names
from hami.vendors.entry_points import full_catalog, sections
from hami.vendors.inventory import PAIR_SCORES
from hami.vendors.spec import Catalog
from hami.vendors.vocabulary import Vocabulary
from tools import admission
from tools.cel import (
    BASE,
    GENERATED,
    MAX_CONTAINERS,
    MAX_KEYS,
    OWN_PLUGIN,
    indented,
    listed_names,
    looks_like_request,
    names_any,
    requests_of,
)

COMPONENTS = BASE.parent / "components"
CLAIMS_CONFIG = COMPONENTS / "dra-allocate" / "scheduler-config.yaml"
CLAIM_WEBHOOKS = COMPONENTS / "dra-allocate" / "webhook.yaml"
TEMPLATE = Path(__file__).with_name("policies.template.yaml")
LOCK_FREE = "hami.io/lock-free"
NODE_PREFIX = "hami.io/node-"
"""Annotations of nodes with this prefix register devices, or answer for them."""
NATIVE = ("MLU", "Mthreads")
"""Vendors whose nodes offer memory and cores as resources: kube-scheduler and the kubelet account for them."""
MAX_VARIABLES = 500
"""The same for variables of a container; with more, it counts as one of high priority."""
DEVICE_PLUGIN = "request.userInfo.username.matches('^system:serviceaccount:[^:]+:[^:]*hami-device-plugin[^:]*$')"
"""CEL: the account of a device plugin, in any namespace, also with a prefix or suffix of an overlay."""
SCHEDULER = (
    "request.userInfo.username.matches('^system:serviceaccount:[^:]+:[^:]*hami-scheduler[^:]*$')"
)
"""CEL: the account of an extender or of its kube-scheduler, likewise."""
EXTENDER = SCHEDULER.replace("hami-scheduler", "hami-scheduler-extender")
"""CEL: the account of an extender that has one of its own, likewise."""
_LISTED = re.compile(r"(?<= r in \[\n)( *)[^\]]*(?=\])")
_PROFILE = re.compile(r"^- schedulerName: (\S+)\n", re.MULTILINE)
_CLAIMS_PROFILE = """\
# the same for pods whose claims the extender makes when it binds them
- schedulerName: {name}-claims
  plugins:
    multiPoint:
      disabled:
      - name: DynamicResources
"""
_HAMI = "k.startsWith('hami.io/')"
_HIGH_PRIORITY = f"""\
[object.spec.containers + object.spec.?initContainers.orValue([])].exists(all,
  all.size() > {MAX_CONTAINERS} || all.exists(c, [c.?env.orValue([])].exists(env,
    env.size() > {MAX_VARIABLES} || env.exists(e,
      e.name == 'CUDA_TASK_PRIORITY' && !e.?value.orValue('').matches('^[1-9][0-9]{{0,8}}$')))))"""
"""CEL: a container of the pod may go before others on its devices."""
_IS_PREEMPTED = f"c.type == '{DISRUPTION_TARGET}' && c.?reason.orValue('') == '{PREEMPTED}'"
"""CEL: *c* is the condition of a pod that is evicted for one of higher priority."""
_ONLY_PREEMPTION = f"""\
oldObject != null
&& [[dyn(object), dyn(oldObject)], [dyn(oldObject), dyn(object)]].all(pair,
  pair[0].all(f, f in ['metadata', 'status'] || pair[0][f] == pair[1][?f].orValue(null))
  && pair[0].metadata.all(f, f in ['managedFields', 'resourceVersion']
    || pair[0].metadata[f] == pair[1].metadata[?f].orValue(null))
  && pair[0].?status.orValue({{}}).all(f, f in ['conditions', 'nominatedNodeName']
    || pair[0].status[f] == pair[1].?status[?f].orValue(null))
  && pair[0].?status.conditions.orValue([]).all(c,
    c in pair[1].?status.conditions.orValue([]) || c.type == '{DISRUPTION_TARGET}'))
&& object.?status.conditions.orValue([]).all(c,
  c in oldObject.?status.conditions.orValue([])
  || ({_IS_PREEMPTED}))"""
"""CEL: nothing of the pod changes but its nomination and that condition. Each field is compared, whatever its name."""


def generated_files(catalog: Catalog, folder: Path = BASE) -> dict[Path, str]:
    """Returns the content of each generated file in *folder*; of two files, only the end is generated.

    Raises: MalformedInput if one of these does not say where; OSError.
    """
    conditions, resources = folder / "webhook.yaml", folder / "scheduler-config.yaml"
    return {
        folder / "policies.yaml": render_policies(catalog),
        conditions: _with_end(conditions, render_match_conditions(catalog)),
        resources: _with_end(resources, render_managed_resources(catalog)),
    }


def pod_keys(catalog: Catalog) -> list[str]:
    """Returns the annotations and labels of pods that users may not write, without those of ``ALLOCATION_PATTERN``."""
    return sorted(SCHEDULER_OWNED) + sorted(
        {
            key
            for keys in (vendor.annotations for vendor in catalog)
            for key in (keys.allocated, keys.to_allocate, *keys.extra_keys)
            if key and not is_scheduler_owned(key)
        }
    )


def node_keys(catalog: Catalog) -> list[str]:
    """Returns the annotations of nodes that users may not write, without those that have ``NODE_PREFIX``."""
    keys = {NODE_LOCK, ROOM, LOCK_FREE, PAIR_SCORES, DEVICE_HEALTH, MEMORY_WALL}
    for vendor in catalog:
        keys |= {
            vendor.annotations.register,
            vendor.annotations.handshake,
            vendor.annotations.allocation_mode,
            vendor.annotations.lock,
        } - {""}
    return sorted(key for key in keys if not key.startswith(NODE_PREFIX))


def render_policies(catalog: Catalog) -> str:
    """Returns ``policies.yaml``."""
    return Template(TEMPLATE.read_text()).substitute(
        generated=GENERATED,
        most_keys=MAX_KEYS,
        device_plugin=DEVICE_PLUGIN,
        scheduler=SCHEDULER,
        extender=EXTENDER,
        token_node="request.userInfo.?extra['authentication.kubernetes.io/node-name'].orValue([''])[0]",
        only_hami=indented(_confined(_HAMI), 6),
        only_hami_and_own_node=indented(_own_node(catalog), 6),
        only_pod_keys=indented(_confined(f"{_HAMI}\n|| {_owned_pod_key(catalog)}", labels=True), 6),
        only_node_keys=indented(_confined(f"{_HAMI}\n|| {_owned_node_key(catalog)}"), 6),
        not_of_plugins=indented(listed_names(sorted({*SCHEDULERS_ALONE, RESIZE})), 10),
        pod_key=indented(_owned_pod_key(catalog), 8),
        node_key=indented(_owned_node_key(catalog), 8),
        requests_devices=indented(_requests_devices(catalog), 6),
        requested_devices=indented(_requests_devices(catalog, pod="oldObject"), 6),
        is_preempted=_IS_PREEMPTED,
        rejected=REJECTED,
        only_preemption=indented(_ONLY_PREEMPTION, 6),
        preemptible=PREEMPTIBLE,
        make_room=MAKE_ROOM,
        gpu_hours=GPU_HOURS,
        priority=" or ".join(
            f"'{vendor.resources.priority}'" for vendor in catalog if vendor.resources.priority
        )
        or "priority",
        may_have_high_priority=indented(_HIGH_PRIORITY, 8),
        has_high_priority=indented(_HIGH_PRIORITY, 6),
        most_containers=MAX_CONTAINERS,
        most_variables=MAX_VARIABLES,
    )


def render_match_conditions(catalog: Catalog) -> str:
    """Returns the end of ``webhook.yaml``."""
    return f"""\
  matchConditions:
  - name: managed-resource-or-reserved-key
    expression: >-
      {indented(names_any(_resources(catalog)), 6)}
      || ['{OVERWRITE_ENV}', '{OVERWRITE_ENV_CONTAINERS}'].exists(k, k in object.metadata.?annotations.orValue({{}}))
      || {indented(looks_like_request(Vocabulary(catalog)), 6)}
      || [object.metadata.?annotations.orValue({{}}), object.metadata.?labels.orValue({{}})].exists(keys,
        keys.size() <= {MAX_KEYS} && keys.exists(k,
          {indented(_owned_pod_key(catalog), 10)}))
  # a pod that has its claim comes by the webhook of its label, whose check is the same (components/dra-allocate);
  # without that component, no node offers what it requests
  - name: without-claim-by-label
    expression: >-
      !(object.metadata.?labels[?'{ALLOCATION_MODE}'].orValue('') in {list(CLAIM_ALLOCATION_MODES)}
        && [object.spec.containers + object.spec.?initContainers.orValue([])].exists(all,
          all.size() <= {MAX_CONTAINERS} && all.exists(c, '{CLAIM_RESOURCE}' in c.?resources.limits.orValue({{}}))))
"""


def render_managed_resources(catalog: Catalog) -> str:
    """Returns the end of ``scheduler-config.yaml``: the resources that nodes do not offer."""
    names = (
        name
        for vendor in catalog
        for name in vendor.resources.names
        if vendor.key not in NATIVE or name == vendor.resources.count
    )
    return "  managedResources:\n" + "".join(map(_managed, names))


def render_claims_config(config: str) -> str:
    """Returns kube-scheduler's *config* with what pods with claims of the scheduler's own need: a profile that leaves
    claims alone, and the resource by which kube-scheduler calls the extender for these pods.

    Raises: MalformedInput if it has not one profile.
    """
    names = _PROFILE.findall(config)
    if len(names) != 1:
        raise MalformedInput(
            "scheduler-config.yaml: profiles",
            ", ".join(names),
            'expected one line such as "- schedulerName: hami-scheduler"',
        )
    profiles = _PROFILE.sub(
        lambda profile: profile[0] + _CLAIMS_PROFILE.format(name=profile[1]), config
    )
    return f"{profiles}{_managed(CLAIM_RESOURCE)}"


def render_claim_webhooks(component: str, catalog: Catalog) -> str:
    """Returns *component*, the webhooks through which pods come that get claims, with the resources of NVIDIA GPUs in
    their conditions."""
    own = [
        name for vendor in catalog if vendor.key == OWN_PLUGIN for name in vendor.resources.names
    ]

    def listed(found: re.Match[str]) -> str:
        names = [*own, CLAIM_RESOURCE] if f"'{CLAIM_RESOURCE}'" in found[0] else own
        return found[1] + indented(listed_names(names), len(found[1]))

    return _LISTED.sub(listed, component)


def _managed(resource: str) -> str:
    return f"  - {{name: {resource}, ignoredByScheduler: true}}\n"


_SAME_LABELS = "object.metadata.?labels.orValue({}) == oldObject.metadata.?labels.orValue({})"


def _confined(
    key: str,
    *,
    labels: bool = False,
    other_labels: str = _SAME_LABELS,
    status: str = "object.?status == oldObject.?status",
) -> str:
    """Returns the CEL expression for: nothing of the object changes but annotations whose keys, *k*, satisfy *key*, an
    expression, and *labels* likewise. *other_labels*, *status*: the expressions for what may change there."""
    fields = ["annotations", "labels"] if labels else ["annotations"]
    unchanged = "" if labels else f"&& {other_labels}\n"
    return f"""\
oldObject != null
&& object.spec == oldObject.spec
&& {status}
{unchanged}\
&& object.metadata.?finalizers.orValue([]) == oldObject.metadata.?finalizers.orValue([])
&& object.metadata.?ownerReferences.orValue([]) == oldObject.metadata.?ownerReferences.orValue([])
&& {_changes_only(fields, key)}"""


def _changes_only(fields: Sequence[str], key: str) -> str:
    """Returns the CEL expression for: of these maps of the metadata only entries change whose keys, *k*, satisfy
    *key*."""
    pairs = ",\n".join(
        f"[oldObject.metadata.?{field}.orValue({{}}), object.metadata.?{field}.orValue({{}})]"
        for field in fields
    )
    return f"""\
[
  {indented(pairs, 2)}
].all(pair, pair[0] == pair[1] || pair.all(keys, keys.size() <= {MAX_KEYS} && keys.all(k,
  {indented(key, 2)}
  || (k in pair[0] && k in pair[1] && pair[0][k] == pair[1][k]))))"""


def _own_node(catalog: Catalog) -> str:
    """Returns the CEL expression for: nothing of the node changes but what our device plugin writes."""
    labels = _changes_only(["labels"], f"k in {list(GPU_LABELS)}")
    return _confined(_HAMI, other_labels=labels, status=_only_own_status(catalog))


def _only_own_status(catalog: Catalog) -> str:
    """Returns the CEL expression for: nothing of the status changes but amounts that our device plugin publishes, and
    the condition of its devices."""
    names = [
        name
        for vendor in catalog
        if vendor.key == OWN_PLUGIN
        for name in capacity_names(vendor.resources)
    ]
    return f"""\
[[dyn(object), dyn(oldObject)], [dyn(oldObject), dyn(object)]].all(pair,
  pair[0].?status.orValue({{}}).all(f, pair[0].status[?f] == pair[1].?status[?f]
    || (f in ['capacity', 'allocatable'] && pair[0].status[f].all(k,
      k in [
        {indented(listed_names(names), 8)}]
      || pair[0].status[f][?k] == pair[1].?status[?f][?k]))
    || (f == 'conditions' && pair[0].status[f].all(c, c.type == '{CONDITION}'
      || c in pair[1].?status.conditions.orValue([])))))"""


def _owned_pod_key(catalog: Catalog) -> str:
    """Returns the CEL expression for: *k* is a key of pods that users may not write."""
    # the pattern alone would cost most of what the API server permits for an expression if the other keys were long
    names = indented(listed_names(pod_keys(catalog)), 2)
    return f"k in [\n  {names}]\n|| ({_HAMI} && k.matches(r'^{ALLOCATION_PATTERN}$'))"


def _owned_node_key(catalog: Catalog) -> str:
    """Returns the CEL expression for: *k* is an annotation of nodes that users may not write."""
    return f"k.startsWith('{NODE_PREFIX}') || k in [\n  {indented(listed_names(node_keys(catalog)), 2)}]"


def _requests_devices(catalog: Catalog, pod: str = "object") -> str:
    """Returns the CEL expression for: a container of *pod* requests an amount that is not 0 of a resource of the
    catalog, or that of pods which get their devices by claims of the scheduler."""
    return requests_of(_resources(catalog), pod)


def _resources(catalog: Catalog) -> list[str]:
    return [name for vendor in catalog for name in vendor.resources.names]


def _with_end(path: Path, end: str) -> str:
    """Returns the text of *path* with *end* after the line that says from where on it is generated.

    Raises: MalformedInput if there is not one such line; OSError.
    """
    lines = path.read_text().splitlines(keepends=True)
    places = [number for number, line in enumerate(lines) if GENERATED in line]
    if len(places) != 1:
        raise MalformedInput(
            str(path), f"{len(places)} such lines", f'expected one line that says "{GENERATED}"'
        )
    return "".join(lines[: places[0] + 1]) + end


def _read(device_config: Path | None) -> DeviceConfig:
    """Returns the device configuration in the file, or that of the chart. Raises: HamiError."""
    if device_config is None:
        return chart_config()
    text = read_text("--device-config", device_config)
    return parse_device_config(text, str(device_config), known=sections())


def _files(config: DeviceConfig, folder: Path) -> dict[Path, str]:
    """Returns the content of the files in *folder*, and of those of the components beside it, if there are any. Says
    which of them cannot be written. Raises: HamiError; OSError."""
    catalog = full_catalog(config)
    files = generated_files(catalog, folder)
    components = folder.absolute().parent / COMPONENTS.name
    if not components.is_dir():
        return files
    claims_config, claim_webhooks, by_policies = (
        components / path.relative_to(COMPONENTS)
        for path in (CLAIMS_CONFIG, CLAIM_WEBHOOKS, admission.FOLDER)
    )
    files[claims_config] = render_claims_config(files[folder / "scheduler-config.yaml"])
    files[claim_webhooks] = render_claim_webhooks(claim_webhooks.read_text(), catalog)
    if obstacle := admission.obstacle(config.nvidia):
        click.echo(f"{by_policies}: not written, since {obstacle}")
        return files
    assert config.nvidia is not None, "an obstacle otherwise"
    return files | admission.generated_files(catalog, config.nvidia, by_policies)


@click.command(
    cls=Command,
    help="Write the generated parts of the manifests in FOLDER (default: manifests/base), "
    "and of the components beside it.",
)
@click.option(
    "--device-config",
    type=click.Path(path_type=Path),
    help="The device configuration, if its resources have other names than those of HAMi's chart.",
)
@click.argument("folder", type=click.Path(path_type=Path), default=BASE)
def main(device_config: Path | None, folder: Path) -> None:
    config = _read(device_config)
    for note in config.notes:
        show_note(note)
    for path, content in _files(config, folder).items():
        path.write_text(content)
        click.echo(path)


if __name__ == "__main__":
    main()
