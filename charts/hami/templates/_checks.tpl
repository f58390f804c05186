{{/* Sentences about values that cannot work, before anything is applied. Types are in values.schema.json. */}}

{{/* hami.check: contradictions, and what the cluster lacks. */}}
{{- define "hami.check" -}}
{{- $v := .v -}}
{{- if not (has $v.takeOver (list "auto" "always" "never")) -}}
{{- fail (printf "takeOver is %q: expected auto, always or never" $v.takeOver) -}}
{{- end -}}
{{- if not (has $v.certificates.mode (list "auto" "self-signed" "secret")) -}}
{{- fail (printf "certificates.mode is %q: expected auto, self-signed or secret; for cert-manager, set scheduler.certManager.enabled" $v.certificates.mode) -}}
{{- end -}}
{{- if and $v.scheduler.certManager.enabled (ne $v.certificates.mode "auto") -}}
{{- fail (printf "scheduler.certManager.enabled and certificates.mode=%s contradict each other: the webhook has one certificate. Leave out one of them" $v.certificates.mode) -}}
{{- end -}}
{{- if and $v.certificates.caBundle (ne .certificates "secret") -}}
{{- fail (printf "certificates.caBundle belongs to certificates.mode=secret, but the mode is %s, which provides its own CA: leave it out" .certificates) -}}
{{- end -}}
{{- if and $v.certificates.caBundle (not (contains "-----BEGIN CERTIFICATE-----" (b64dec $v.certificates.caBundle))) -}}
{{- fail "certificates.caBundle is not a certificate (PEM) in base64: use --set certificates.caBundle=$(base64 -w0 ca.crt)" -}}
{{- end -}}
{{- range $program, $words := dict "scheduler.extender" $v.scheduler.extender.extraArgs "devicePlugin" $v.devicePlugin.extraArgs "devicePlugin.monitor" $v.devicePlugin.monitor.extraArgs -}}
{{- range $words -}}
{{- $flag := regexFind "^--?[A-Za-z][^=]*" (toString .) | trimPrefix "-" | trimPrefix "-" | replace "_" "-" -}}
{{- if and $flag (not (has $flag (get $.keys.flags $program))) -}}
{{- fail (printf "%s.extraArgs has %s, a flag that our program does not have: docs/configuration.md lists those it has" $program .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .monitor (not $v.devicePlugin.enabled) -}}
{{- fail "monitor.enabled needs the device plugin, whose containers it observes: set devicePlugin.enabled to true, or monitor.enabled to false" -}}
{{- end -}}
{{- if and $v.devicePlugin.mockCards (not $v.devicePlugin.enabled) -}}
{{- fail "devicePlugin.mockCards gives mock GPUs to our device plugin: set devicePlugin.enabled to true" -}}
{{- end -}}
{{- if and $v.devicePlugin.createRuntimeClass (not $v.devicePlugin.runtimeClassName) -}}
{{- fail "devicePlugin.createRuntimeClass needs a name: set devicePlugin.runtimeClassName" -}}
{{- end -}}
{{- include "hami.checkDra" . -}}
{{- if gt (len .name) 40 -}}
{{- fail (printf "the name %q has more than 40 characters: set a shorter fullnameOverride" .name) -}}
{{- end -}}
{{- if and (lookup "v1" "Namespace" "" "kube-system") (ne .namespace .root.Release.Namespace) (not (lookup "v1" "Namespace" "" .namespace)) -}}
{{- fail (printf "namespaceOverride names the namespace %q, which does not exist: create it, or leave namespaceOverride out" .namespace) -}}
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

{{/* hami.checkDra: where cards cannot be allocated by claims. */}}
{{- define "hami.checkDra" -}}
{{- $v := .v -}}
{{- $resource := $v.dra.extendedResource -}}
{{- if and $resource (not $v.dra.enabled) -}}
{{- fail "dra.extendedResource belongs to dra.enabled: set it to true, or leave out the resource" -}}
{{- end -}}
{{- if and $v.dra.allocate (not $v.dra.enabled) -}}
{{- fail "dra.allocate belongs to dra.enabled: set it to true, or leave out dra.allocate" -}}
{{- end -}}
{{- if $v.dra.enabled -}}
{{- if or .takeOver (hasKey .root.Values "hami-dra") -}}
{{- fail "dra.enabled of HAMi's chart installs a driver whose claims ours does not serve: set it to false until that release has been replaced, and leave out hami-dra" -}}
{{- end -}}
{{- if semverCompare "<1.36-0" .root.Capabilities.KubeVersion.Version -}}
{{- fail (printf "dra.enabled needs Kubernetes 1.36, which lets several claims share a device; this is %s" .root.Capabilities.KubeVersion.Version) -}}
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

{{/* hami.checkKeys: every value is known, and none that must keep HAMi's default has another one. */}}
{{- define "hami.checkKeys" -}}
{{- $ctx := . -}}
{{- $without := list -}}
{{- /* with --reuse-values, Helm passes the defaults of HAMi's chart, which ours does not have */ -}}
{{- $reused := or (hasKey .root.Values "podSecurityPolicy") (hasKey .root.Values "mockDevicePlugin") -}}
{{- range $path := include "hami.paths" (list "" .root.Values) | fromJsonArray -}}
{{- $known := "" -}}
{{- $steps := splitList "\n" $path.name -}}
{{- range $at := untilStep (len $steps) 0 -1 -}}
{{- $prefix := slice $steps 0 $at | join "." -}}
{{- if and (not $known) (or (hasKey $ctx.keys.upstream $prefix) (has $prefix $ctx.keys.own)) -}}{{- $known = $prefix -}}{{- end -}}
{{- end -}}
{{- $name := join "." $steps -}}
{{- if not $known -}}
{{- if or $ctx.root.Chart.IsRoot (not (hasPrefix "global." $name)) -}}
{{- if or (has $name $ctx.keys.groups) (eq $name "global") -}}
{{- else if $reused -}}
{{- if $path.value -}}{{- $without = append $without (printf "%s: not a value of HAMi's chart up to v2.10." $name) -}}{{- end -}}
{{- else -}}
{{- fail (printf "unknown value %s; the nearest are %s. The chart's README and docs/helm-values.md list all values" $name (include "hami.nearest" (list $name $ctx.keys))) -}}
{{- end -}}
{{- end -}}
{{- else if hasKey $ctx.keys.upstream $known -}}
{{- $row := get $ctx.keys.upstream $known -}}
{{- $usual := and (empty $path.value) (not (kindIs "bool" $path.value)) -}}
{{- range $row.defaults -}}{{- if eq (toJson .) (toJson $path.value) -}}{{- $usual = true -}}{{- end -}}{{- end -}}
{{- if and (not $usual) (eq $row.effect "refused") (not $row.checked) -}}
{{- fail (printf "%s is %s, which cannot be: %s" $name (toJson $path.value) $row.text) -}}
{{- else if and (not $usual) (eq $row.effect "none") -}}
{{- $without = append $without (printf "%s: %s" $name $row.text) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $_ := set $ctx "withoutEffect" $without -}}
{{- end -}}

{{/* hami.paths: the leaves of a map: a JSON list of {name, value}; the steps of a name are separated by line feeds,
because keys of labels contain points. Argument: prefix, map. */}}
{{- define "hami.paths" -}}
{{- $found := list -}}
{{- $prefix := index . 0 -}}
{{- range $key, $value := index . 1 -}}
{{- $name := printf "%s%s" $prefix $key -}}
{{- if and (kindIs "map" $value) $value -}}
{{- $found = concat $found (include "hami.paths" (list (printf "%s\n" $name) $value) | fromJsonArray) -}}
{{- else -}}
{{- $found = append $found (dict "name" $name "value" $value) -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* hami.nearest: the three known names that share the most pairs of letters with a name. Argument: name, keys. */}}
{{- define "hami.nearest" -}}
{{- $name := index . 0 -}}
{{- $pairs := include "hami.pairs" $name | fromJsonArray -}}
{{- $rated := list -}}
{{- range concat (keys (index . 1).upstream) (index . 1).own | uniq -}}
{{- $others := include "hami.pairs" . | fromJsonArray -}}
{{- $shared := 0 -}}
{{- range $pairs -}}{{- if has . $others -}}{{- $shared = add1 $shared -}}{{- end -}}{{- end -}}
{{- $rated = append $rated (printf "%04d %s" (sub 9999 (div (mul 18000 $shared) (add (len $pairs) (len $others) 1))) .) -}}
{{- end -}}
{{- $names := list -}}
{{- range slice (sortAlpha $rated) 0 3 -}}{{- $names = append $names (substr 5 -1 .) -}}{{- end -}}
{{- join ", " $names -}}
{{- end -}}

{{- define "hami.pairs" -}}
{{- $letters := splitList "" (lower .) -}}
{{- $found := list -}}
{{- range $at := until (int (sub (len $letters) 1)) -}}
{{- $found = append $found (printf "%s%s" (index $letters $at) (index $letters (add1 $at))) -}}
{{- end -}}
{{- $found | uniq | toJson -}}
{{- end -}}
