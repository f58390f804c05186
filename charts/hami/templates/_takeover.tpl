{{/* What a release keeps of the one that it replaces. Only here does what is rendered depend on the cluster, and only with
takeOver=auto: Helm without a cluster, and Argo CD, render a new installation then. */}}

{{/* hami.predecessor: sets in Facts
takeOver         whether a release of HAMi's chart is being replaced: pods of both run
limiter          whether containers get HAMi's limiter, as in that release
networkPolicies  whether there are NetworkPolicies: not in a release that has had none
policyActions    what the API server's policies do
bothAccounts     whether the scheduler's pods still have one account for kube-scheduler and the extender
trustedCA        what all webhooks trust; otherwise the scheduler or cert-manager writes it
inheritedCA      what the webhooks beside HAMi's trust, with a certificate of the user's */}}
{{- define "hami.predecessor" -}}
{{- $name := include "hami.fullname" . -}}
{{- $namespace := include "hami.namespace" . -}}
{{- $takeOver := eq .Values.takeOver "always" -}}
{{- $limiter := false -}}
{{- $noNetworkPolicies := false -}}
{{- $bothAccounts := false -}}
{{- $trusted := .Values.certificates.caBundle -}}
{{- $inherited := "" -}}
{{- if eq .Values.takeOver "auto" -}}
{{- $deployment := lookup "apps/v1" "Deployment" $namespace (printf "%s-scheduler" $name) -}}
{{- range dig "spec" "template" "spec" "containers" list $deployment -}}
{{- if eq .name "vgpu-scheduler-extender" -}}{{- $takeOver = true -}}{{- end -}}
{{- end -}}
{{- $plugin := lookup "apps/v1" "DaemonSet" $namespace (printf "%s-device-plugin" $name) -}}
{{- range dig "spec" "template" "spec" "initContainers" list $plugin -}}
{{- if eq .name "limiter" -}}{{- $limiter = true -}}{{- end -}}
{{- end -}}
{{- if and $deployment (not (lookup "networking.k8s.io/v1" "NetworkPolicy" $namespace (printf "%s-scheduler" $name))) -}}
{{- $noNetworkPolicies = true -}}
{{- end -}}
{{- /* only a release of HAMi's chart, and one of ours until it had two accounts, has this binding */ -}}
{{- if lookup "rbac.authorization.k8s.io/v1" "ClusterRoleBinding" "" (printf "%s-scheduler-rights" $name) -}}
{{- $bothAccounts = true -}}
{{- end -}}
{{- if not $trusted -}}
{{- $webhook := lookup "admissionregistration.k8s.io/v1" "MutatingWebhookConfiguration" "" (printf "%s-webhook" $name) -}}
{{- range $webhook.webhooks -}}
{{- if eq .name "vgpu.hami.io" -}}{{- $inherited = .clientConfig.caBundle -}}{{- end -}}
{{- end -}}
{{- range dig "metadata" "managedFields" list $webhook -}}
{{- /* Helm would remove what it has written itself, such as certificates.caBundle of the last revision */ -}}
{{- $written := dig "f:webhooks" `k:{"name":"vgpu.hami.io"}` "f:clientConfig" dict (.fieldsV1 | default dict) -}}
{{- if and (eq .manager "helm") (hasKey $written "f:caBundle") -}}{{- $trusted = $inherited -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $limiter = ternary (or $takeOver $limiter) .Values.limiter.hami (kindIs "invalid" .Values.limiter.hami) -}}
{{- /* mock cards need no limiter, and their nodes no image of HAMi */ -}}
{{- if and .Values.devicePlugin.mockCards (kindIs "invalid" .Values.limiter.hami) -}}{{- $limiter = false -}}{{- end -}}
{{- $policies := .Values.networkPolicy.enabled -}}
{{- if kindIs "invalid" $policies -}}{{- $policies = not (or $takeOver $noNetworkPolicies) -}}{{- end -}}
{{- $warns := or (eq .Values.policies.mode "warn") (and (eq .Values.policies.mode "auto") $takeOver) -}}
{{- $_ := set .Facts "takeOver" $takeOver -}}
{{- $_ := set .Facts "limiter" $limiter -}}
{{- $_ := set .Facts "networkPolicies" $policies -}}
{{- $_ := set .Facts "warns" $warns -}}
{{- $_ := set .Facts "policyActions" (ternary "[Warn, Audit]" "[Deny]" $warns) -}}
{{- $_ := set .Facts "bothAccounts" (or $takeOver $bothAccounts) -}}
{{- $_ := set .Facts "trustedCA" ($trusted | default "") -}}
{{- $_ := set .Facts "inheritedCA" ($inherited | default "") -}}
{{- end -}}
