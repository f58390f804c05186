"""The policies of the API server and the conditions of the webhooks, as templates of the chart.

They are those of ``tools.policies`` and ``tools.admission`` for our catalog, in which the names of resources, accounts
and schedulers are expressions of Helm: the chart renders them with the names of a release's device configuration.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from hami.codec.device_config import NvidiaConfig
from hami.codec.documents import parse_own_yaml
from hami.codec.keys import CLAIM_RESOURCE
from hami.vendors.capacity import capacity_names
from hami.vendors.spec import Catalog
from tools import admission, policies
from tools.cel import OWN_PLUGIN

__all__ = ["TEMPLATES", "generated_files"]

TEMPLATES = Path(__file__).parents[1] / "charts" / "hami" / "templates"
_NAME = '{{ include "hami.fullname" . }}'
_LABELS = '  labels: {{- include "hami.labels" (list . "") | nindent 4 }}\n'
_NAME_LABEL = "  labels:\n    app.kubernetes.io/name: hami\n"
_HEAD = '{{- include "hami.prepare" . -}}\n{{- if %s -}}\n'
_END = "{{- end }}\n"
_OWN_ACCOUNT = ("hami-preemption", "hami-make-room", "hami-budgets", "hami-nvidia-requests")
"""Policies that deny also while a release of HAMi's chart is being replaced: about our own account, about
what HAMi does not know, and in place of the webhook."""
_KEYS = {
    "resource_count_name": "resourceCountName",
    "resource_memory_name": "resourceMemoryName",
    "resource_memory_percentage_name": "resourceMemoryPercentageName",
    "resource_core_name": "resourceCoreName",
    "resource_priority_name": "resourcePriorityName",
}
"""Fields of the section ``nvidia`` that name resources, and their keys."""
_VARIABLES = {
    "schedulerName": "squote .Values.schedulerName",
    "defaultGPUNum": ".Facts.nvidia.defaultGPUNum | default 0",
    "runtimeClassName": 'squote (.Facts.nvidia.runtimeClassName | default "")',
    "gpuCorePolicy": 'squote (.Facts.nvidia.gpuCorePolicy | default "default")',
    "memoryFactor": ".Facts.nvidia.memoryFactor | default 1",
    "defaultCores": ".Facts.nvidia.defaultCores | default 0",
    "gpucoresLimits": 'include "hami.coresLimits" .',
}
"""Variables of the policies of admission that say what the device configuration does, by the templates' expressions."""
_REJECTED = re.compile(r"(?m)(?<=^  - name: rejected\n)(    expression: >-\n(?:      .*\n)+)")
_WITHOUT_REJECTED = r"""    {{- if eq .Values.scheduler.cleanRejected "none" }}
    expression: "false"
    {{- else }}
\1    {{- end }}
"""
_SELECTORS = re.compile(
    r"    namespaceSelector:\n      matchExpressions:\n      - .*\n"
    r"    objectSelector:\n      matchExpressions:\n      - .*\n"
)
_SELECTED = """\
    namespaceSelector: {{- include "hami.namespaceSelector" . | nindent 6 }}
    objectSelector: {{- include "hami.selector" .Values.scheduler.admissionWebhook.objectSelector | nindent 6 }}
"""


def generated_files(catalog: Catalog, config: NvidiaConfig) -> dict[Path, str]:
    """Returns the content of each of these templates. *config*: the section of NVIDIA in the device configuration."""
    of_admission = admission.generated_files(catalog, config)
    files = {
        TEMPLATES / "policies" / f"{name}.yaml": template
        for name, template in _policies(policies.render_policies(catalog), catalog)
    }
    for name, template in _policies(
        of_admission[admission.FOLDER / "policies.yaml"], catalog, config
    ):
        files[TEMPLATES / "admission" / f"{name}.yaml"] = template
    files[TEMPLATES / "scheduler" / "_conditions.tpl"] = _conditions(
        policies.render_match_conditions(catalog),
        of_admission[admission.FOLDER / "webhook.yaml"],
        catalog,
    )
    return files


def _policies(
    text: str, catalog: Catalog, config: NvidiaConfig | None = None
) -> Iterable[tuple[str, str]]:
    """Yields each policy with its binding, by its name without the prefix."""
    documents = re.split(r"(?m)^---\n", text)
    for policy, binding in zip(documents[::2], documents[1::2], strict=True):
        name = parse_own_yaml(policy)["metadata"]["name"]
        condition = ".Values.policies.enabled"
        if config is not None:
            condition = 'eq .Values.admission.mode "policy"'
        body = _released(f"{policy}---\n{binding}".removesuffix("\n") + "\n", catalog)
        if config is not None:
            body = _of_device_config(body, config)
        body = _REJECTED.sub(_WITHOUT_REJECTED, body)
        if name not in _OWN_ACCOUNT:
            body = body.replace("[Deny]", "{{ .Facts.policyActions }}")
            body = body.replace("[Warn]", '{{ ternary "[Warn, Audit]" "[Warn]" .Facts.warns }}')
        yield name.removeprefix("hami-"), _HEAD % condition + body + _END


def _conditions(all_vendors: str, others: str, catalog: Catalog) -> str:
    """Returns the templates of the conditions of the webhook. *others*: the patch for its condition without NVIDIA's
    resources."""
    _, _, conditions = others.partition("  value:\n")
    return f"""\
{{{{/* {policies.GENERATED}: which pods the webhook receives. Argument: root. */}}}}
{{{{- define "hami.matchConditions" -}}}}
{_dedented(_released(all_vendors, catalog))}{{{{- end -}}}}

{{{{/* hami.matchConditionsOfOthers: with policies for pods that request NVIDIA GPUs. Argument: root. */}}}}
{{{{- define "hami.matchConditionsOfOthers" -}}}}
matchConditions:
{_dedented(_released(conditions, catalog))}{{{{- end -}}}}
"""


def _dedented(text: str) -> str:
    """Returns *text* two columns to the left."""
    moved = re.sub(r"(?m)^  ", "", text)
    return re.sub(r"nindent (\d+)", lambda found: f"nindent {int(found[1]) - 2}", moved)


def _released(text: str, catalog: Catalog) -> str:
    """Returns *text* with the names of a release's objects, accounts and resources."""
    assert "{{" not in text, "Helm would take it for its own"
    everything = [name for vendor in catalog for name in vendor.resources.names]
    others = [
        name for vendor in catalog if vendor.key != OWN_PLUGIN for name in vendor.resources.names
    ]
    (own,) = (vendor.resources for vendor in catalog if vendor.key == OWN_PLUGIN)
    claim = f'"{CLAIM_RESOURCE}"'
    for names, expression in (
        ([*everything, CLAIM_RESOURCE], f"append .Facts.resources {claim}"),
        (
            [*others, CLAIM_RESOURCE],
            f'append (include "hami.otherResources" . | fromJsonArray) {claim}',
        ),
        (sorted(everything), "sortAlpha .Facts.resources"),
        (capacity_names(own), 'include "hami.capacities" . | fromJsonArray'),
    ):
        text = _with_list(text, names, expression)
    text = text.replace(
        f"'{own.priority}'", "'{{ .Facts.nvidia.resourcePriorityName | default \"priority\" }}'"
    )
    text = re.sub(
        r"((?:^  name|policyName): |\[\^:\]\*|contains\(')hami-", rf"\1{_NAME}-", text, flags=re.M
    )
    text = re.sub(
        r"hami-(?=priority-user|preemption-refuser|move-requester|budget-writer)", f"{_NAME}-", text
    )
    return text.replace(_NAME_LABEL, _LABELS)


def _with_list(text: str, names: list[str], expression: str) -> str:
    """Returns *text* with the names that a template's *expression* returns in place of the list of *names*."""
    items = r",\s+".join(re.escape(f"'{name}'") for name in names)
    return re.sub(
        rf"\n( +){items}",
        lambda found: (
            f'\n{found[1]}{{{{- include "hami.listed" ({expression}) | nindent {len(found[1])} }}}}'
        ),
        text,
    )


def _of_device_config(text: str, config: NvidiaConfig) -> str:
    """Returns *text*, about pods that request NVIDIA GPUs, with what the device configuration of a release says."""
    for name, expression in _VARIABLES.items():
        text = re.sub(
            rf'(?m)^(  - name: {name}\n    expression: )".*"$',
            lambda found, value=expression: f"{found[1]}{{{{ {value} | toString | toJson }}}}",
            text,
        )
    names = {getattr(config, field): key for field, key in _KEYS.items()}
    pattern = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    text = re.sub(
        rf"(?<![\w./-])({pattern})(?![\w/-]|\.\w)",
        lambda found: f"{{{{ .Facts.nvidia.{names[found[1]]} }}}}",
        text,
    )
    listed = ", ".join(f"'{name}'" for name in admission.SCHEDULERS)
    text = text.replace(f"[{listed}]", '{{ include "hami.schedulers" . }}')
    return _SELECTORS.sub(lambda found: _SELECTED, text)
