{{/* The values of a release, also of one of HAMi's chart: with `--reuse-values`, Helm passes the values of that chart
alone, without the defaults of this one. */}}

{{/* hami.prepare: sets v, keys, name, namespace, labels, takeOver and certificates in ctx. */}}
{{- define "hami.prepare" -}}
{{- $ctx := . -}}
{{- $_ := set $ctx "keys" ($ctx.root.Files.Get "files/keys.json" | fromJson) -}}
{{- include "hami.checkKeys" $ctx -}}
{{- $v := deepCopy (omit $ctx.root.Values "hami-dra") -}}
{{- $_ := set $ctx "v" $v -}}
{{- include "hami.oldNames" $v -}}
{{- include "hami.newNames" $ctx -}}
{{- include "hami.fill" (list $v $ctx.keys.defaults) -}}
{{- $_ := set $ctx "name" (include "hami.fullname" $ctx) -}}
{{- $_ := set $ctx "namespace" (include "hami.namespace" $ctx) -}}
{{- $_ := set $ctx "labels" (dict "app.kubernetes.io/name" ($v.nameOverride | default "hami") "app.kubernetes.io/instance" $ctx.root.Release.Name) -}}
{{- include "hami.findPredecessor" $ctx -}}
{{- $mode := $v.certificates.mode -}}
{{- if $v.scheduler.certManager.enabled -}}
{{- $mode = "cert-manager" -}}
{{- else if eq $mode "auto" -}}
{{- $mode = ternary "self-signed" "secret" $v.scheduler.patch.enabled -}}
{{- end -}}
{{- $_ := set $ctx "certificates" $mode -}}
{{- $monitor := $v.monitor.enabled -}}
{{- if kindIs "invalid" $monitor -}}{{- $monitor = $v.devicePlugin.enabled -}}{{- end -}}
{{- $_ := set $ctx "monitor" $monitor -}}
{{- /* `on` and `off` without quotes are booleans in YAML */ -}}
{{- $_ := set $ctx "preemption" (get (dict "true" "on" "false" "off") (toString $v.scheduler.preemption.mode) | default (toString $v.scheduler.preemption.mode)) -}}
{{- include "hami.inherit" $ctx -}}
{{- include "hami.check" $ctx -}}
{{- end -}}

{{/* hami.findPredecessor: whether the release in the cluster is one of HAMi's chart, by its container. */}}
{{- define "hami.findPredecessor" -}}
{{- $found := eq .v.takeOver "always" -}}
{{- if eq .v.takeOver "auto" -}}
{{- $running := lookup "apps/v1" "Deployment" .namespace (printf "%s-scheduler" .name) -}}
{{- range (dig "spec" "template" "spec" "containers" list $running) -}}
{{- if eq .name "vgpu-scheduler-extender" -}}{{- $found = true -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $_ := set . "takeOver" $found -}}
{{- end -}}

{{/* hami.inherit: what stays as it is in the release until a value says otherwise: its limiter, and that it has no
NetworkPolicies. Sets hamiLimiter, networkPolicies and policiesWarn in ctx. */}}
{{- define "hami.inherit" -}}
{{- $v := .v -}}
{{- $limiter := $v.limiter.hami -}}
{{- if kindIs "invalid" $limiter -}}
{{- $limiter = .takeOver -}}
{{- $running := lookup "apps/v1" "DaemonSet" .namespace (printf "%s-device-plugin" .name) -}}
{{- range (dig "spec" "template" "spec" "initContainers" list $running) -}}
{{- if eq .name "limiter" -}}{{- $limiter = true -}}{{- end -}}
{{- end -}}
{{- /* mock cards need no limiter, and their nodes no image of HAMi */ -}}
{{- if $v.devicePlugin.mockCards -}}{{- $limiter = false -}}{{- end -}}
{{- end -}}
{{- $_ := set . "hamiLimiter" $limiter -}}
{{- $policies := $v.networkPolicy.enabled -}}
{{- if kindIs "invalid" $policies -}}
{{- $policies = not .takeOver -}}
{{- $object := printf "%s-scheduler" .name -}}
{{- if and (lookup "apps/v1" "Deployment" .namespace $object) (not (lookup "networking.k8s.io/v1" "NetworkPolicy" .namespace $object)) -}}
{{- $policies = false -}}
{{- end -}}
{{- end -}}
{{- $_ := set . "networkPolicies" $policies -}}
{{- $_ := set . "policiesWarn" (or (eq $v.policies.mode "warn") (and (eq $v.policies.mode "auto") .takeOver)) -}}
{{- end -}}

{{/* hami.fill: sets what is missing. Argument: values, defaults. `merge` would also replace false and 0. */}}
{{- define "hami.fill" -}}
{{- $values := index . 0 -}}
{{- range $key, $default := index . 1 -}}
{{- $missing := or (not (hasKey $values $key)) (kindIs "invalid" (get $values $key)) -}}
{{- if and $missing (kindIs "invalid" $default) -}}
{{- $_ := set $values $key nil -}}
{{- else if $missing -}}
{{- $_ := set $values $key (deepCopy $default) -}}
{{- else if and (kindIs "map" $default) (kindIs "map" (get $values $key)) (ne $key "nvidiaNodeSelector") -}}
{{- /* of the labels of nodes, null has removed the one that is the default */ -}}
{{- include "hami.fill" (list (get $values $key) $default) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* hami.oldNames: moves values of HAMi's chart v2.4 to v2.7 to where later versions have them. */}}
{{- define "hami.oldNames" -}}
{{- $scheduler := .scheduler | default dict -}}
{{- $plugin := .devicePlugin | default dict -}}
{{- range $holder := list ($scheduler.kubeScheduler | default dict) ($scheduler.extender | default dict) $plugin -}}
{{- if kindIs "string" $holder.image -}}
{{- $_ := set $holder "image" (dict "registry" "" "repository" $holder.image "tag" ($holder.imageTag | default "") "pullPolicy" ($holder.imagePullPolicy | default "")) -}}
{{- end -}}
{{- end -}}
{{- $monitor := $plugin.monitor | default dict -}}
{{- with $plugin.monitorimage -}}{{- $_ := set $monitor "image" (dict "repository" .) -}}{{- end -}}
{{- with $plugin.vgpuMonitor -}}{{- with .resources -}}{{- $_ := set $monitor "resources" . -}}{{- end -}}{{- end -}}
{{- if $monitor -}}{{- $_ := set $plugin "monitor" $monitor -}}{{- end -}}
{{- with $plugin.nvidianodeSelector -}}{{- $_ := set $plugin "nvidiaNodeSelector" . -}}{{- end -}}
{{- with $scheduler.customWebhook -}}
{{- $webhook := $scheduler.admissionWebhook | default dict -}}
{{- $_ := set $webhook "customURL" (pick . "enabled" "host" "port" "path") -}}
{{- $_ := set $webhook "whitelistNamespaces" .whitelistNamespaces -}}
{{- $_ := set $scheduler "admissionWebhook" $webhook -}}
{{- end -}}
{{- if hasKey . "version" -}}
{{- $service := $scheduler.service | default dict -}}
{{- if not (hasKey $service "httpTargetPort") -}}{{- $_ := set $service "httpTargetPort" 443 -}}{{- end -}}
{{- $_ := set $scheduler "service" $service -}}
{{- end -}}
{{- with $scheduler.mutatingWebhookConfiguration -}}
{{- $webhook := $scheduler.admissionWebhook | default dict -}}
{{- $_ := set $webhook "failurePolicy" .failurePolicy -}}
{{- $_ := set $scheduler "admissionWebhook" $webhook -}}
{{- end -}}
{{- end -}}

{{/* hami.newNames: sets values by the names that HAMi's chart has since v2.11. Sets nothing for null. Argument: ctx. */}}
{{- define "hami.newNames" -}}
{{- $ctx := . -}}
{{- range $name, $row := .keys.upstream -}}
{{- if $row.as -}}
{{- $value := include "hami.valueOf" (list $ctx.v $name) | fromJson -}}
{{- if not (kindIs "invalid" $value.value) -}}
{{- $steps := splitList "." $row.as -}}
{{- $before := include "hami.valueOf" (list $ctx.v $row.as) | fromJson -}}
{{- $usual := include "hami.valueOf" (list $ctx.keys.defaults $row.as) | fromJson -}}
{{- $alike := list (toJson $value.value) (toJson $usual.value) "null" -}}
{{- range (get $ctx.keys.upstream $row.as).defaults -}}{{- $alike = append $alike (toJson .) -}}{{- end -}}
{{- if not (has (toJson $before.value) $alike) -}}
{{- fail (printf "%s and %s are the same value, and both are set: leave one out" $name $row.as) -}}
{{- end -}}
{{- $holder := $ctx.v -}}
{{- range initial $steps -}}
{{- if not (kindIs "map" (get $holder .)) -}}{{- $_ := set $holder . dict -}}{{- end -}}
{{- $holder = get $holder . -}}
{{- end -}}
{{- $_ := set $holder (last $steps) $value.value -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* hami.valueOf: a JSON map whose `value` is a value by its name; null if there is none. Argument: values, name. */}}
{{- define "hami.valueOf" -}}
{{- $value := index . 0 -}}
{{- range splitList "." (index . 1) -}}
{{- if kindIs "map" $value -}}{{- $value = index $value . -}}{{- end -}}
{{- end -}}
{{- toJson (dict "value" (ternary $value (index (dict) "") (not (kindIs "map" $value)))) -}}
{{- end -}}

{{/* hami.image: of this project, or the one that a value names. Argument: ctx, value, name of ours. */}}
{{- define "hami.image" -}}
{{- $ctx := index . 0 -}}
{{- $image := index . 1 -}}
{{- $global := $ctx.v.global -}}
{{- $ours := $ctx.v.image -}}
{{- $registry := $image.registry -}}
{{- $repository := $image.repository -}}
{{- $hamis := regexMatch "(^|/)projecthami/hami$" ($repository | default "") -}}
{{- if or $hamis (not $repository) -}}
{{- $repository = index . 2 -}}
{{- $registry = ternary $ours.registry ($registry | default $ours.registry) $hamis -}}
{{- end -}}
{{- $tag := "" -}}
{{- range list $image.tag $global.imageTag $ours.tag $ctx.root.Chart.AppVersion -}}
{{- $next := . | default "" | toString | trim -}}
{{- if and (not $tag) $next (not (regexMatch `^v?2\.` $next)) -}}{{- $tag = $next -}}{{- end -}}
{{- end -}}
{{- include "hami.reference" (list $ctx $registry $repository $tag $image.digest) -}}
{{- end -}}

{{/* hami.kubeScheduler: its image, of the version of the cluster. */}}
{{- define "hami.kubeScheduler" -}}
{{- $image := .v.scheduler.kubeScheduler.image -}}
{{- $tag := $image.tag | default "" | toString | trim -}}
{{- if or (not $tag) (and (regexMatch `^v?1\.\d+(\.\d+)?$` $tag) (semverCompare "<1.31" $tag)) -}}
{{- $tag = regexFind `^v\d+\.\d+\.\d+` .root.Capabilities.KubeVersion.Version -}}
{{- end -}}
{{- include "hami.reference" (list . $image.registry $image.repository $tag $image.digest) -}}
{{- end -}}

{{/* hami.reference. Argument: ctx, registry, repository, tag, digest. */}}
{{- define "hami.reference" -}}
{{- $registry := (index . 0).v.global.imageRegistry | default (index . 1) -}}
{{- with $registry -}}{{- . -}}/{{- end -}}
{{- index . 2 -}}
{{- if index . 4 -}}@{{- index . 4 -}}{{- else -}}:{{- index . 3 -}}{{- end -}}
{{- end -}}
