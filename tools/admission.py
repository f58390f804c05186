"""Admission without a call: what ``hami/vendors/nvidia.py`` does with a pod, as policies of the API server (CEL).

The component ``admission-policies`` consists of them and of a patch that keeps pods which request GPUs of NVIDIA only
away from the webhook. A test compares what both make of thousands of pods.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import Template

from hami.codec.admission import MIRROR
from hami.codec.device_config import NvidiaConfig
from hami.codec.forms import (
    LONGEST_WORD,
    MAX_NAMES,
    NOT_IN_NAMES,
    Form,
    NameList,
    Weighted,
    Words,
)
from hami.codec.keys import (
    ALLOCATION_PATTERN,
    CORES_LIMIT,
    OVERWRITE_ENV,
    OVERWRITE_ENV_CONTAINERS,
    SCHEDULER_OWNED,
    is_allocation,
)
from hami.quantity import INT32_MAX
from hami.scheduler.admit import MAX_RESOURCES
from hami.vendors.nvidia import (
    LIMIT_VARIABLES,
    MPS_VARIABLES,
    MPS_WARNING,
    NOTHING_VISIBLE,
    RESERVED_VARIABLES,
    VISIBLE_VARIABLE,
)
from hami.vendors.request import MAX_CONTAINERS, WHOLE
from hami.vendors.spec import Catalog
from hami.vendors.terms import Author, Place, Term
from hami.vendors.vocabulary import Vocabulary
from hami.vendors.wishes import OWN_DOMAIN, WRITE_AS_LABEL, WRITE_ON_NODES, Wishes
from tools.cel import (
    BASE,
    GENERATED,
    MAX_KEYS,
    OWN_PLUGIN,
    indented,
    listed_names,
    looks_like_request,
    names_any,
)

FOLDER = BASE.parent / "components" / "admission-policies"
TEMPLATE = Path(__file__).with_name("admission.template.yaml")
SCHEDULERS = "", "default-scheduler", "hami-scheduler", "hami-scheduler-claims"
"""Values of schedulerName of pods that the webhook takes for its scheduler."""
_FIELDS = "containers", "initContainers"
_AMOUNTS = "c.?resources.requests.orValue({})"
"""CEL: the amounts of a container. The API server makes requests of limits before, and refuses other requests of such
resources."""


def generated_files(
    catalog: Catalog, config: NvidiaConfig, folder: Path = FOLDER
) -> dict[Path, str]:
    """Returns the generated files of the component, which is in *folder*. *config*: the section of NVIDIA in the device
    configuration."""
    others = [
        name for vendor in catalog if vendor.key != OWN_PLUGIN for name in vendor.resources.names
    ]
    webhook = f"""\
# {GENERATED}
- {{op: test, path: /webhooks/1/name, value: vgpu.hami.io}}
- op: replace
  path: /webhooks/1/matchConditions
  value:
  - name: managed-resource-of-others
    expression: >-
      {indented(names_any(others), 6)}
      || ['{OVERWRITE_ENV}', '{OVERWRITE_ENV_CONTAINERS}'].exists(k, k in object.metadata.?annotations.orValue({{}}))
"""
    return {
        folder / "policies.yaml": _Expressions(config, Vocabulary(catalog)).render(),
        folder / "webhook.yaml": webhook,
    }


def needs_webhook(config: NvidiaConfig) -> bool:
    """Reports whether only the webhook can carry out *config*: it must see all pods then."""
    return config.strict or config.overwrite_env


def obstacle(config: NvidiaConfig | None) -> str:
    """Returns why no policies can do what the webhook does by *config*; empty if they can."""
    if config is None:
        return "the device configuration has no section nvidia, whose pods they are for"
    if not config.resource_count_name:
        return "nvidia.resourceCountName is missing, which names the resource of their pods"
    if needs_webhook(config):
        return "nvidia.strict and nvidia.overwriteEnv need the webhook"
    return ""


class _Expressions:
    """The expressions about a container *c*, with the names of resources in *config*."""

    def __init__(self, config: NvidiaConfig, vocabulary: Vocabulary) -> None:
        self._config = config
        self._vocabulary = vocabulary
        self._count, self._cores = config.resource_count_name, config.resource_core_name
        self._memory, self._percent = (
            config.resource_memory_name,
            config.resource_memory_percentage_name,
        )
        self._priority = config.resource_priority_name

    def render(self) -> str:
        """Returns ``policies.yaml``."""
        config, all_containers = (
            self._config,
            "object.spec.containers + object.spec.?initContainers.orValue([])",
        )
        schedulers = ", ".join(f"'{name}'" for name in SCHEDULERS)
        return Template(TEMPLATE.read_text()).substitute(
            generated=GENERATED,
            default_count=config.default_gpu_num,
            runtime_class=config.runtime_class_name,
            core_policy=config.gpu_core_policy,
            memory_factor=config.memory_factor,
            default_cores=config.default_cores,
            cores_limit=CORES_LIMIT,
            limits_cores=_LIMITS_CORES,
            cores_name=self._cores or self._count,
            cores_limits=", ".join(
                f"'{name}': {limit}" for name, limit in sorted(config.gpucores_limits.items())
            ),
            cores_with_defaults=indented(
                self._cores_of(f"({all_containers})", self._lacks_count, self._lacks_cores), 6
            ),
            cores=indented(self._cores_of("variables.all", "false", "false"), 6),
            asks=indented(f"({all_containers}).exists(c,\n  {indented(self._asks, 2)})", 6),
            asks_of_all=indented(f"variables.all.exists(c,\n  {indented(self._asks, 2)})", 6),
            word_patches=indented(_word_patches(self._terms), 8),
            terms_are_read="\n".join(map(_validation, self._terms)),
            most_containers=MAX_CONTAINERS,
            most_resources=MAX_RESOURCES,
            largest=INT32_MAX,
            memory=self._memory or self._count,
            memory_unit=_unit(config.memory_factor),
            four_gib=-(-4096 // max(config.memory_factor, 1)),
            memory_percent=self._percent or "percentage",
            is_ours=indented(
                f"object.spec.?schedulerName.orValue('') in [{schedulers}]\n"
                f"&& ({all_containers}).exists(c,\n"
                f"  {indented(self._names_any([*self._given, self._priority]), 2)})",
                6,
            ),
            is_mirror=_MIRROR,
            requests_devices=indented(
                f"({all_containers}).exists(c,\n  {indented(self._requests, 2)})", 6
            ),
            requesting=indented(
                f"variables.all.filter(c, {self._has(self._count)}\n  && {indented(self._asks, 2)})",
                6,
            ),
            patches=indented("\n".join(self._patches(field) for field in _FIELDS), 8),
            percent_is_valid=indented(
                self._of_all(
                    self._percent,
                    f"q.compareTo(quantity('0')) >= 0 && q.compareTo(quantity('{WHOLE}')) <= 0",
                ),
                6,
            ),
            amounts_are_valid=indented(
                "\n&& ".join(self._of_all(name, self._is_amount(name)) for name in self._given), 6
            ),
            variables_are_free=indented(_FREE, 6),
            **self._about_wishes(schedulers),
        )

    def _about_wishes(self, schedulers: str) -> dict[str, object]:
        """Returns what the policy of the warnings consists of. *schedulers*: the items of a list."""
        vocabulary = self._vocabulary
        wishes = Wishes(vocabulary)
        advice: dict[str, list[str]] = {WRITE_AS_LABEL: [], WRITE_ON_NODES: []}
        for key, text in wishes.misplaced.items():
            advice[text].append(key)
        words = wishes.known | set(wishes.misplaced) | SCHEDULER_OWNED
        own_words = [
            word
            for word in sorted(words)
            if word.startswith(f"{OWN_DOMAIN}/") and not is_allocation(word)
        ]
        names = [*self._given, self._priority]
        all_containers = "object.spec.containers + object.spec.?initContainers.orValue([])"
        return {
            "names_any": f"({all_containers}).exists(c,\n        {indented(self._names_any(names), 8)})",
            "looks_like_request": indented(looks_like_request(vocabulary), 6),
            "most_keys": MAX_KEYS,
            "resources": indented(listed_names(sorted(vocabulary.catalog.resources)), 8),
            "own_domain": OWN_DOMAIN,
            "own_words": indented(listed_names(own_words), 8),
            "allocation_pattern": ALLOCATION_PATTERN,
            "label_words": listed_names(sorted(advice[WRITE_AS_LABEL])),
            "node_words": listed_names(sorted(advice[WRITE_ON_NODES])),
            "annotation_words": indented(listed_names(sorted(wishes.annotations)), 8),
            "asks_of_one": indented(self._asks, 8),
            "schedulers": schedulers,
            "has_count": self._has(self._count),
            "count": self._count,
            "memory_has_no_unit": self._memory_has_no_unit,
            "cores_are_of_one": indented(
                self._of_all(self._cores, f"q.compareTo(quantity('{WHOLE}')) <= 0"), 6
            ),
            "whole": WHOLE,
            "mps_variables": MPS_VARIABLES,
            "mps_warning": MPS_WARNING,
        }

    @property
    def _given(self) -> list[str]:
        return [name for name in (self._count, self._memory, self._percent, self._cores) if name]

    @staticmethod
    def _names_any(names: list[str]) -> str:
        listed = ", ".join(f"'{name}'" for name in names if name)
        return f"{_AMOUNTS}.exists(r, r in [\n  {listed}])"

    @staticmethod
    def _has(name: str) -> str:
        return f"'{name}' in {_AMOUNTS}" if name else "false"

    @staticmethod
    def _amount(name: str) -> str:
        return f"quantity(string(c.resources.requests['{name}']))"

    @property
    def _asks(self) -> str:
        """The container names an amount that is not 0, which the API server writes in this way."""
        listed = ", ".join(f"'{name}'" for name in self._given)
        return (
            f"{_AMOUNTS}.exists(r, r in [\n  {listed}] && string(c.resources.requests[r]) != '0')"
        )

    @property
    def _lacks_count(self) -> str:
        return f"variables.defaultGPUNum > 0 && !({self._has(self._count)}) && {self._asks}"

    @property
    def _requests(self) -> str:
        return f"({self._has(self._count)} || variables.defaultGPUNum > 0) && {self._asks}"

    @property
    def _lacks_limits(self) -> str:
        """The container has requests of some of the resources without limits."""
        listed = ", ".join(f"'{name}'" for name in self._given)
        return (
            f"{_AMOUNTS}.exists(r, r in [\n  {listed}] && !(r in c.?resources.limits.orValue({{}})))\n"
            f"&& {self._asks}"
        )

    @property
    def _terms(self) -> list[Term]:
        """The annotations that the API server checks: the others need the webhook, or have a check of their own."""
        terms = []
        for term in self._vocabulary.terms:
            if term.place is not Place.POD_ANNOTATION or term.author is not Author.USER:
                continue
            if term.vendor in ("", OWN_PLUGIN) and isinstance(term.form, _CHECKED):
                terms.append(term)
        return terms

    @property
    def _lacks_cores(self) -> str:
        """The container requests devices, all of their memory, and no cores."""
        whole = (
            (
                f"({self._has(self._percent)} ? {_rounded_to(self._amount(self._percent), WHOLE)}\n"
                f"  : !({self._has(self._memory)}))"
            )
            if self._percent
            else f"!({self._has(self._memory)})"
        )
        return f"({self._requests})\n&& !({self._has(self._cores)})\n&& {whole}"

    def _patches(self, field: str) -> str:
        path = f"'/spec/{field}/' + string(i) + "
        cores, count = (
            f"{path}'/resources/limits/' + jsonpatch.escapeKey('{name}')"
            for name in (self._cores, self._count)
        )
        set_env = [f"({condition})" for condition, _, _ in self._variables]
        lists = [
            (
                f"!has(c.resources.limits) && {self._lacks_limits}",
                f"JSONPatch{{op: 'add', path: {path}'/resources/limits', value: {{}}}}",
            ),
            (
                self._lacks_limits,
                f"{_AMOUNTS}.filter(r, r in [{', '.join(repr(name) for name in self._given)}]\n"
                "    && !(r in c.?resources.limits.orValue({})))\n"
                f"  .map(r, JSONPatch{{op: 'add', path: {path}'/resources/limits/' + jsonpatch.escapeKey(r),\n"
                "    value: string(c.resources.requests[r])})",
            ),
            (
                self._lacks_count,
                f"JSONPatch{{op: 'add', path: {count},\n  value: string(variables.defaultGPUNum)}}",
            ),
            *(
                [(self._lacks_cores, f"JSONPatch{{op: 'add', path: {cores}, value: '{WHOLE}'}}")]
                if self._cores
                else []
            ),
            (
                f"!has(c.env) && ({' || '.join(set_env)})",
                f"JSONPatch{{op: 'add', path: {path}'/env', value: []}}",
            ),
        ]
        # places are those before the first patch, so all variables that are replaced are removed at once
        replaced = " || ".join(
            f"(e.name == '{name}' && {condition})" for condition, name, _ in self._variables
        )
        lists.append(
            (
                "has(c.env)",
                (
                    f"c.env.transformList(j, e, {replaced}, j)\n"
                    f"  .transformList(k, j, JSONPatch{{op: 'remove', path: {path}'/env/' + string(j - k)}})"
                ),
            )
        )
        lists += (
            (
                condition,
                f"JSONPatch{{op: 'add', path: {path}'/env/-',\n"
                f"  value: {{'name': '{name}', 'value': {value}}}}}",
            )
            for condition, name, value in self._variables
        )
        return "\n".join(
            f"+ object.spec.?{field}.orValue([]).transformList(i, c,\n"
            f"  {indented(condition, 2)},\n  {indented(patches, 2)})"
            + (".flatten()" if ".map(r" in patches or "'remove'" in patches else "")
            for condition, patches in lists
        )

    @property
    def _variables(self) -> list[tuple[str, str, str]]:
        """The variables that a container gets: in which case, the name and the value."""
        amount = self._amount(self._priority)
        # an amount that is no integer is refused by the API server
        has_priority = f"{self._has(self._priority)} && {amount}.isInteger()"
        has_policy = "!(variables.gpuCorePolicy in ['', 'default'])"  # also containers without GPUs, as in upstream
        priorities = (
            [(has_priority, "CUDA_TASK_PRIORITY", f"string({amount}.asInteger())")]
            if self._priority
            else []
        )
        return [*priorities, (has_policy, "GPU_CORE_UTILIZATION_POLICY", "variables.gpuCorePolicy")]

    def _cores_of(self, containers: str, lacks_count: str, lacks_cores: str) -> str:
        """Returns the expression for the percentages that *containers* which request devices get of each.
        *lacks_count*, *lacks_cores*: the conditions under which one gets what it does not ask for."""
        count = f"{self._amount(self._count)}.compareTo(quantity('0')) > 0"
        has_some = f"({self._has(self._count)} ? {count} : {lacks_count})"
        cores = "variables.defaultCores"
        if self._cores:
            amount = self._amount(self._cores)
            cores = (
                f"{self._has(self._cores)} ? ({amount}.isInteger() ? {amount}.asInteger() : 0)\n"
                f"  : ({indented(lacks_cores, 4)})\n  ? {WHOLE} : variables.defaultCores"
            )
        return f"{containers}.filter(c, {has_some})\n.map(c, {cores})\n.map(cores, cores < {WHOLE} ? cores : {WHOLE})"

    def _of_all(self, name: str, condition: str) -> str:
        """Returns the expression for: *condition* holds for *q*, the amount of *name*, where a container has it."""
        if not name:
            return "true"
        return f"variables.all.all(c, !({self._has(name)})\n  || [{self._amount(name)}].all(q, {condition}))"

    @property
    def _memory_has_no_unit(self) -> str:
        if not self._memory:
            return "true"
        text = f"string(c.resources.requests['{self._memory}'])"
        return f"variables.all.all(c, !({self._has(self._memory)}) || !{text}.matches('[MGTPE]i$'))"

    def _is_amount(self, name: str) -> str:
        least = "" if name == self._percent else " && q.asInteger() >= 0"
        factor = (
            f" && q.asInteger() * variables.memoryFactor <= {INT32_MAX}"
            if name == self._memory
            else ""
        )
        return f"q.isInteger(){least} && q.asInteger() <= {INT32_MAX}{factor}"


def _unit(factor: int) -> str:
    return "MiB" if factor <= 1 else f"units of {factor} MiB"


def _word_patches(terms: Sequence[Term]) -> str:
    """Returns the patches that write words of annotations as programs expect them."""
    lists, words, lowered = [], [], []
    for term in terms:
        if isinstance(term.form, Weighted):
            lowered.append(term.key)
        elif isinstance(term.form, Words):
            (lists if term.form.is_list else words).append(term.key)
    patches = []
    for keys, canonical in (
        (words, "text.trim().lowerAscii()"),
        (lists, f"{_LISTED}.join(',')"),
        (lowered, "text.lowerAscii()"),
    ):
        patches.append(
            f"+ (variables.asks ? [\n  {indented(listed_names(keys), 2)}]\n"
            "  .filter(k, k in variables.annotations && variables.annotations[k].trim() != ''\n"
            f"    && variables.annotations[k].size() <= {LONGEST_WORD})\n"
            f"  .map(k, [variables.annotations[k]].map(text, {canonical})\n"
            "    .filter(text, text != '' && text != variables.annotations[k])\n"
            "    .map(text, JSONPatch{op: 'replace',\n"
            "      path: '/metadata/annotations/' + jsonpatch.escapeKey(k), value: text})).flatten() : [])"
        )
    return "\n".join(patches)


def _validation(term: Term) -> str:
    """Returns the validation of the annotation *term*."""
    return f"""\
  - reason: Invalid
    expression: >-
      !variables.asks || [variables.annotations[?'{term.key}'].orValue('')].all(text, text.trim() == ''
        || ({indented(_is_read(term.form), 8)}))
    message: >-
      annotation {term.key}: expected {term.form.expected}"""


def _is_read(form: Form) -> str:
    """Returns the expression for: *text* has this form."""
    if isinstance(form, Words):
        words = ", ".join(f"'{word}'" for word in form.all)
        is_short = f"text.size() <= {LONGEST_WORD}"
        if form.is_list:
            return f"{is_short} && [{_LISTED}].all(words,\n  words.size() > 0 && words.all(w, w in [{words}]))"
        return f"{is_short} && text.trim().lowerAscii() in [{words}]"
    if isinstance(form, Weighted):
        return _WEIGHTED
    return (
        f"[text.split(',')].all(items, items.size() <= {MAX_NAMES} && items.exists(i, i.trim() != '')\n"
        f'  && !items.exists(i, i.trim().matches("{_CEL_NOT_IN_NAMES}")))'
    )


_CEL_NOT_IN_NAMES = "[" + NOT_IN_NAMES.replace("\\", "\\\\").replace('"', '\\"') + "]"
_WEIGHT = r"^(slot|core|memory)\\s*=\\s*[+]?[0-9]{1,18}$"
_WEIGHTED = f"""\
text.size() <= {LONGEST_WORD} && [text.split(',')].all(items, items.size() == 3
  && items.all(i, i.trim().lowerAscii().matches('{_WEIGHT}'))
  && ['slot', 'core', 'memory'].all(name, items.exists(i, i.trim().lowerAscii().startsWith(name)))
  && text.matches('[1-9]'))"""


def _rounded_to(amount: str, value: int) -> str:
    """Returns the expression for: the quantity *amount* is *value* when it is rounded up."""
    return f"{amount}.compareTo(quantity('{value - 1}')) > 0 && {amount}.compareTo(quantity('{value}')) <= 0"


_LIMITS_CORES = f"""\
variables.cores.size() > 0 && request.namespace in variables.gpucoresLimits
          && variables.annotations[?'{CORES_LIMIT}'].orValue('').trim() == ''"""
_MIRROR = (
    "('system:nodes' in request.userInfo.groups "
    f"&& '{MIRROR}' in object.metadata.?annotations.orValue({{}}))"
)
_CHECKED = (Words, NameList, Weighted)
_LISTED = "text.split(',').map(w, w.trim().lowerAscii()).filter(w, w != '')"
_FREE = f"""\
variables.requesting.all(c, c.?env.orValue([]).all(e,
  !(e.name == '{VISIBLE_VARIABLE}' && !(e.?value.orValue('') in {list(NOTHING_VISIBLE)}))
  && !(e.name in [
    {", ".join(f"'{name}'" for name in (*LIMIT_VARIABLES, *sorted(RESERVED_VARIABLES)))}])
  && !({" || ".join(f"e.name.startsWith('{name}_')" for name in LIMIT_VARIABLES)})))"""
