{{/* hami.prepare is the first line of each template. Once for a release, it sets in the root:
.Values  with HAMi's names of values translated (_hami-values.tpl), and with all defaults
.Facts   what follows from them: below, in _takeover.tpl and in _devices.tpl */}}
{{- define "hami.prepare" -}}
{{- if not (hasKey . "Facts") -}}
{{- $_ := set . "Facts" dict -}}
{{- include "hami.values" . -}}
{{- include "hami.facts" . -}}
{{- include "hami.predecessor" . -}}
{{- include "hami.check" . -}}
{{- include "hami.devices" . -}}
{{- include "hami.checkAdmission" . -}}
{{- end -}}
{{- end -}}

{{/* hami.facts: what several templates ask for. */}}
{{- define "hami.facts" -}}
{{- $facts := .Facts -}}
{{- $mode := .Values.certificates.mode -}}
{{- if .Values.scheduler.certManager.enabled -}}
{{- $mode = "cert-manager" -}}
{{- else if eq $mode "auto" -}}
{{- $mode = ternary "self-signed" "secret" .Values.scheduler.patch.enabled -}}
{{- end -}}
{{- $_ := set $facts "certificates" $mode -}}
{{- $_ := set $facts "monitor" (ternary .Values.devicePlugin.enabled .Values.monitor.enabled (kindIs "invalid" .Values.monitor.enabled)) -}}
{{- /* `on` and `off` without quotes are booleans in YAML */ -}}
{{- $preemption := toString .Values.scheduler.preemption.mode -}}
{{- $_ := set $facts "preemption" (get (dict "true" "on" "false" "off") $preemption | default $preemption) -}}
{{- $_ := set $facts "mig" (or .Values.mig (ne .Values.devicePlugin.migStrategy "none")) -}}
{{- $_ := set $facts "hook" (printf "%s/vgpu" (trimSuffix "/" .Values.global.gpuHookPath)) -}}
{{- end -}}

{{/* hami.fullname: as in HAMi's chart, so that a release keeps the names of its objects. */}}
{{- define "hami.fullname" -}}
{{- $name := .Values.nameOverride | default "hami" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name -}}
{{- end -}}
{{- end -}}

{{- define "hami.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end -}}

{{/* hami.selectorLabels: labels of pods that never change, as in HAMi's chart. Argument: root, component. */}}
{{- define "hami.selectorLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ toYaml ($root.Values.nameOverride | default "hami") }}
app.kubernetes.io/instance: {{ toYaml $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* hami.labels: those of an object. Argument: root, component (may be empty), more labels. The first of a key counts. */}}
{{- define "hami.labels" -}}
{{- $root := index . 0 -}}
{{- $labels := include "hami.selectorLabels" . | fromYaml -}}
{{- if not (index . 1) -}}{{- $labels = omit $labels "app.kubernetes.io/component" -}}{{- end -}}
{{- $_ := set $labels "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version) -}}
{{- $_ := set $labels "app.kubernetes.io/version" (toString $root.Chart.AppVersion) -}}
{{- $_ := set $labels "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- range slice . 2 -}}{{- $labels = merge $labels (. | default dict) -}}{{- end -}}
{{- toYaml (merge $labels $root.Values.commonLabels) -}}
{{- end -}}

{{/* hami.podLabels: those of a pod: the webhook leaves ours alone. Argument: root, component, more labels. */}}
{{- define "hami.podLabels" -}}
{{- $labels := include "hami.selectorLabels" . | fromYaml -}}
{{- $_ := set $labels "app.kubernetes.io/managed-by" (index . 0).Release.Service -}}
{{- $_ := set $labels "hami.io/webhook" "ignore" -}}
{{- range slice . 2 -}}{{- $labels = merge $labels . -}}{{- end -}}
{{- toYaml (merge $labels (index . 0).Values.commonLabels) -}}
{{- end -}}

{{/* hami.account: the name of a ServiceAccount. Argument: root, component, value. */}}
{{- define "hami.account" -}}
{{- (index . 2).name | default (printf "%s-%s" (include "hami.fullname" (index . 0)) (index . 1)) -}}
{{- end -}}

{{/* hami.subject: a ServiceAccount, in a binding. Argument: root, name. */}}
{{- define "hami.subject" -}}
- kind: ServiceAccount
  name: {{ index . 1 }}
  namespace: {{ include "hami.namespace" (index . 0) }}
{{- end -}}

{{/* hami.env: environment variables, a map or a list, as a list; empty if there are none. */}}
{{- define "hami.env" -}}
{{- if kindIs "map" . -}}
{{- range $name, $value := . }}
- {name: {{ toJson $name }}, value: {{ toString $value | toJson }}}
{{- end -}}
{{- else if . }}
{{ toYaml . }}
{{- end -}}
{{- end -}}

{{/* hami.selector: what a value selects beside our own terms. Argument: value. */}}
{{- define "hami.selector" -}}
{{- with .matchLabels -}}
matchLabels: {{ toJson . }}
{{ end -}}
matchExpressions:
- {key: hami.io/webhook, operator: NotIn, values: [ignore]}
{{- with .matchExpressions }}
{{ toYaml . }}
{{- end -}}
{{- end -}}

{{/* hami.namespaceSelector: the namespaces whose pods HAMi admits. Argument: root. */}}
{{- define "hami.namespaceSelector" -}}
{{- include "hami.selector" .Values.scheduler.admissionWebhook.namespaceSelector -}}
{{- with .Values.scheduler.admissionWebhook.whitelistNamespaces }}
- {key: kubernetes.io/metadata.name, operator: NotIn, values: {{ toJson . }}}
{{- end -}}
{{- end -}}

{{/* hami.extenderSubjects: the account of webhook and extender, in a binding. The scheduler of HAMi, and that of our releases
until they had two accounts, runs with the account of kube-scheduler until its pods are replaced. Argument: root. */}}
{{- define "hami.extenderSubjects" -}}
{{- include "hami.subject" (list . (include "hami.account" (list . "scheduler-extender" .Values.scheduler.extender.serviceAccount))) -}}
{{- if .Facts.bothAccounts }}
{{ include "hami.subject" (list . (include "hami.account" (list . "scheduler" .Values.scheduler.serviceAccount))) }}
{{- end -}}
{{- end -}}
