{{/* Sentences about values that cannot work, before anything is applied. Types are in values.schema.json. */}}

{{/* hami.check: contradictions, and what the cluster lacks. */}}
{{- define "hami.check" -}}
{{- $v := .Values -}}
{{- $name := include "hami.fullname" . -}}
{{- $namespace := include "hami.namespace" . -}}
{{- if not (has $v.takeOver (list "auto" "always" "never")) -}}
{{- fail (printf "takeOver is %q: expected auto, always or never" $v.takeOver) -}}
{{- end -}}
{{- if not (has $v.certificates.mode (list "auto" "self-signed" "secret")) -}}
{{- fail (printf "certificates.mode is %q: expected auto, self-signed or secret; for cert-manager, set scheduler.certManager.enabled" $v.certificates.mode) -}}
{{- end -}}
{{- if and $v.scheduler.certManager.enabled (ne $v.certificates.mode "auto") -}}
{{- fail (printf "scheduler.certManager.enabled and certificates.mode=%s contradict each other: the webhook has one certificate. Leave out one of them" $v.certificates.mode) -}}
{{- end -}}
{{- if and $v.certificates.caBundle (ne .Facts.certificates "secret") -}}
{{- fail (printf "certificates.caBundle belongs to certificates.mode=secret, but the mode is %s, which provides its own CA: leave it out" .Facts.certificates) -}}
{{- end -}}
{{- if and $v.certificates.caBundle (not (contains "-----BEGIN CERTIFICATE-----" (b64dec $v.certificates.caBundle))) -}}
{{- fail "certificates.caBundle is not a certificate (PEM) in base64: use --set certificates.caBundle=$(base64 -w0 ca.crt)" -}}
{{- end -}}
{{- range $program, $words := dict "scheduler.extender" $v.scheduler.extender.extraArgs "devicePlugin" $v.devicePlugin.extraArgs "devicePlugin.monitor" $v.devicePlugin.monitor.extraArgs "dashboard" $v.dashboard.extraArgs -}}
{{- range $words -}}
{{- $flag := regexFind "^--?[A-Za-z][^=]*" (toString .) | trimPrefix "-" | trimPrefix "-" | replace "_" "-" -}}
{{- if and $flag (not (has $flag (get $.Facts.flags $program))) -}}
{{- fail (printf "%s.extraArgs has %s, a flag that our program does not have: docs/configuration.md lists those it has" $program .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Facts.monitor (not $v.devicePlugin.enabled) -}}
{{- fail "monitor.enabled needs the device plugin, whose containers it observes: set devicePlugin.enabled to true, or monitor.enabled to false" -}}
{{- end -}}
{{- if and $v.devicePlugin.mockCards (not $v.devicePlugin.enabled) -}}
{{- fail "devicePlugin.mockCards gives mock GPUs to our device plugin: set devicePlugin.enabled to true" -}}
{{- end -}}
{{- if and $v.devicePlugin.createRuntimeClass (not $v.devicePlugin.runtimeClassName) -}}
{{- fail "devicePlugin.createRuntimeClass needs a name: set devicePlugin.runtimeClassName" -}}
{{- end -}}
{{- if and $v.dashboard.enabled $v.dashboard.ingress.enabled (not $v.dashboard.ingress.host) -}}
{{- fail "dashboard.ingress.host is empty: set it to the name by which people reach the dashboard, such as hami.example.com" -}}
{{- end -}}
{{- include "hami.checkBudgets" . -}}
{{- include "hami.checkDra" . -}}
{{- include "hami.checkAccounts" . -}}
{{- if gt (len $name) 40 -}}
{{- fail (printf "the name %q has more than 40 characters: set a shorter fullnameOverride" $name) -}}
{{- end -}}
{{- if and (lookup "v1" "Namespace" "" "kube-system") (ne $namespace .Release.Namespace) (not (lookup "v1" "Namespace" "" $namespace)) -}}
{{- fail (printf "namespaceOverride names the namespace %q, which does not exist: create it, or leave namespaceOverride out" $namespace) -}}
{{- end -}}
{{- range $v.scheduler.kubeScheduler.extraNewArgs -}}
{{- if and (hasPrefix "--config=" .) (ne . "--config=/config/config.yaml") -}}
{{- fail (printf "scheduler.kubeScheduler.extraNewArgs has %s, but the configuration of kube-scheduler is made by the chart: leave the flag out" .) -}}
{{- end -}}
{{- end -}}
{{- $home := printf "%s/vgpu" $v.global.gpuHookPath -}}
{{- $paths := list (list "devicePlugin.libPath" $v.devicePlugin.libPath $home) -}}
{{- $paths = append $paths (list "devicePlugin.monitorctrPath" $v.devicePlugin.monitorctrPath (printf "%s/containers" $home)) -}}
{{- $paths = append $paths (list "devicePlugin.monitor.ctrPath" $v.devicePlugin.monitor.ctrPath (printf "%s/containers" $home)) -}}
{{- range $paths -}}
{{- if and (index . 1) (not (has (index . 1) (list (index . 2) "/usr/local/vgpu" "/usr/local/vgpu/containers"))) -}}
{{- fail (printf "%s is %s, but global.gpuHookPath puts this directory at %s: set it to that, or change global.gpuHookPath" (index . 0) (index . 1) (index . 2)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* hami.checkBudgets: where nobody could hold the budgets of namespaces. */}}
{{- define "hami.checkBudgets" -}}
{{- $over := .Values.scheduler.overBudget -}}
{{- if and (ne $over.action "warn") (not .Values.scheduler.usage.namespace) -}}
{{- fail (printf "scheduler.overBudget.action=%s needs the records of usage: set scheduler.usage.namespace" $over.action) -}}
{{- end -}}
{{- if and (eq $over.action "demote") (not $over.priorityClassName) -}}
{{- fail "scheduler.overBudget.action=demote needs a priority class: set scheduler.overBudget.priorityClassName" -}}
{{- end -}}
{{- if and (ne $over.action "demote") $over.priorityClassName -}}
{{- fail (printf "scheduler.overBudget.priorityClassName belongs to scheduler.overBudget.action=demote, but the action is %s: leave it out" $over.action) -}}
{{- end -}}
{{- end -}}

{{/* hami.checkDra: where cards cannot be allocated by claims. */}}
{{- define "hami.checkDra" -}}
{{- $v := .Values -}}
{{- $resource := $v.dra.extendedResource -}}
{{- if and $resource (not $v.dra.enabled) -}}
{{- fail "dra.extendedResource belongs to dra.enabled: set it to true, or leave out the resource" -}}
{{- end -}}
{{- if and $v.dra.allocate (not $v.dra.enabled) -}}
{{- fail "dra.allocate belongs to dra.enabled: set it to true, or leave out dra.allocate" -}}
{{- end -}}
{{- if $v.dra.enabled -}}
{{- if or .Facts.takeOver .Facts.hamiDra -}}
{{- fail "dra.enabled of HAMi's chart installs a driver whose claims ours does not serve: set it to false until that release has been replaced, and leave out hami-dra" -}}
{{- end -}}
{{- if semverCompare "<1.36-0" .Capabilities.KubeVersion.Version -}}
{{- fail (printf "dra.enabled needs Kubernetes 1.36, which lets several claims share a device; this is %s" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if not $v.devicePlugin.enabled -}}
{{- fail "dra.enabled needs the device plugin, which publishes the cards: set devicePlugin.enabled to true" -}}
{{- end -}}
{{- range (lookup "resource.k8s.io/v1" "DeviceClass" "" "" | dig "items" list) -}}
{{- if and $resource (ne .metadata.name "gpu.hami.io") (eq (.spec.extendedResourceName | default "") $resource) -}}
{{- fail (printf "dra.extendedResource is %s, for which the DeviceClass %s already stands: name another one" $resource .metadata.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* hami.checkAccounts: the policies of the API server know our accounts by parts of their names. */}}
{{- define "hami.checkAccounts" -}}
{{- $name := include "hami.fullname" . -}}
{{- range $row := list
  (list "scheduler" .Values.scheduler.serviceAccount "scheduler")
  (list "scheduler.extender" .Values.scheduler.extender.serviceAccount "scheduler-extender")
  (list "devicePlugin" .Values.devicePlugin.serviceAccount "device-plugin")
-}}
{{- $account := (index $row 1).name -}}
{{- $part := printf "%s-%s" $name (index $row 2) -}}
{{- if and $account (not (contains $part $account)) -}}
{{- fail (printf "%s.serviceAccount.name is %s: the name must contain %s, by which the policies of the API server know the account" (index $row 0) $account $part) -}}
{{- end -}}
{{- end -}}
{{- if contains (printf "%s-scheduler-extender" $name) .Values.scheduler.serviceAccount.name -}}
{{- fail (printf "scheduler.serviceAccount.name is %s: the account of kube-scheduler is not that of the extender: leave %s-scheduler-extender out of the name" .Values.scheduler.serviceAccount.name $name) -}}
{{- end -}}
{{- end -}}

{{/* hami.checkAdmission: where the policies of the API server cannot do what the webhook does. */}}
{{- define "hami.checkAdmission" -}}
{{- if eq .Values.admission.mode "policy" -}}
{{- if semverCompare "<1.36-0" .Capabilities.KubeVersion.Version -}}
{{- fail (printf "admission.mode=policy needs Kubernetes 1.36 (MutatingAdmissionPolicy), and this is %s" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- range $name, $wrong := dict "strict" .Facts.strict "scheduler.overwriteEnv" .Facts.overwriteEnv "dra.allocate" .Values.dra.allocate "scheduler.overBudget.action" (ne .Values.scheduler.overBudget.action "warn") -}}
{{- if $wrong -}}{{- fail (printf "%s needs admission.mode=webhook: the webhook must see all pods" $name) -}}{{- end -}}
{{- end -}}
{{- if not .Values.policies.enabled -}}{{- fail "admission.mode=policy needs policies.enabled" -}}{{- end -}}
{{- $nvidia := .Facts.nvidia -}}
{{- range $key, $usual := dict "resourceCountName" "nvidia.com/gpu" "resourceMemoryName" "nvidia.com/gpumem" "resourceMemoryPercentageName" "nvidia.com/gpumem-percentage" "resourceCoreName" "nvidia.com/gpucores" "resourcePriorityName" "nvidia.com/priority" -}}
{{- if not (get $nvidia $key) -}}{{- fail (printf "admission.mode=policy needs nvidia.%s in the device configuration, such as %s" $key $usual) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
