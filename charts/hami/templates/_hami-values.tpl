{{/* Values by the names that HAMi's chart has, and what of them is without effect here. Templates read only the names of
values.yaml: skip this file, unless you look for one of HAMi's. files/names.json lists all of them.

With `--reuse-values`, Helm passes the values of HAMi's chart alone, without the defaults of this one: files/values.yaml. */}}

{{/* hami.values: sets .Values. */}}
{{- define "hami.values" -}}
{{- $known := .Files.Get "files/names.json" | fromJson -}}
{{- $defaults := .Files.Get "files/values.yaml" | fromYaml -}}
{{- $_ := set .Facts "flags" $known.flags -}}
{{- include "hami.checkNames" (list . $known) -}}
{{- $values := deepCopy (omit .Values "hami-dra") -}}
{{- include "hami.oldNames" $values -}}
{{- /* HAMi's defaults, which give its containers more than ours need */ -}}
{{- range $holder := list ($values.devicePlugin | default dict) (($values.devicePlugin | default dict).monitor | default dict) -}}
{{- range $name := list "devicePlugin.securityContext" "devicePlugin.monitor.securityContext" -}}
{{- range (get $known.upstream $name).defaults -}}
{{- if eq (toJson $holder.securityContext) (toJson .) -}}{{- $_ := unset $holder "securityContext" -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "hami.newNames" (list $values $defaults $known.upstream) -}}
{{- include "hami.fill" (list $values $defaults) -}}
{{- /* what is left of HAMi's own: its chart for claims, and its mock device plugin, which shows memory and cores of GPUs */ -}}
{{- $_ := set .Facts "hamiDra" (hasKey .Values "hami-dra") -}}
{{- $_ := set .Facts "publishCapacity" ((.Values.mockDevicePlugin | default dict).enabled | default false) -}}
{{- $_ := set . "Values" $values -}}
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

{{/* hami.newNames: sets values by the names that HAMi's chart has since v2.11. Sets nothing for null. Argument: values,
defaults, what is known of HAMi's. */}}
{{- define "hami.newNames" -}}
{{- $values := index . 0 -}}
{{- $defaults := index . 1 -}}
{{- $upstream := index . 2 -}}
{{- range $name, $row := $upstream -}}
{{- if $row.as -}}
{{- $value := include "hami.valueOf" (list $values $name) | fromJson -}}
{{- if not (kindIs "invalid" $value.value) -}}
{{- $steps := splitList "." $row.as -}}
{{- $before := include "hami.valueOf" (list $values $row.as) | fromJson -}}
{{- $usual := include "hami.valueOf" (list $defaults $row.as) | fromJson -}}
{{- $alike := list (toJson $value.value) (toJson $usual.value) "null" -}}
{{- range (get $upstream $row.as).defaults -}}{{- $alike = append $alike (toJson .) -}}{{- end -}}
{{- if not (has (toJson $before.value) $alike) -}}
{{- fail (printf "%s and %s are the same value, and both are set: leave one out" $name $row.as) -}}
{{- end -}}
{{- $holder := $values -}}
{{- range initial $steps -}}
{{- if not (kindIs "map" (get $holder .)) -}}{{- $_ := set $holder . dict -}}{{- end -}}
{{- $holder = get $holder . -}}
{{- end -}}
{{- $_ := set $holder (last $steps) $value.value -}}
{{- end -}}
{{- end -}}
{{- end -}}
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

{{/* hami.valueOf: a JSON map whose `value` is a value by its name; null if there is none. Argument: values, name. */}}
{{- define "hami.valueOf" -}}
{{- $value := index . 0 -}}
{{- range splitList "." (index . 1) -}}
{{- if kindIs "map" $value -}}{{- $value = index $value . -}}{{- end -}}
{{- end -}}
{{- toJson (dict "value" (ternary $value (index (dict) "") (not (kindIs "map" $value)))) -}}
{{- end -}}

{{/* hami.checkNames: every value is known, and none that must keep HAMi's default has another one. Sets withoutEffect in
Facts. Argument: root, what is known. */}}
{{- define "hami.checkNames" -}}
{{- $root := index . 0 -}}
{{- $known := index . 1 -}}
{{- $without := list -}}
{{- /* with --reuse-values, Helm passes the defaults of HAMi's chart, which ours does not have */ -}}
{{- $reused := or (hasKey $root.Values "podSecurityPolicy") (hasKey $root.Values "mockDevicePlugin") -}}
{{- range $path := include "hami.paths" (list "" $root.Values) | fromJsonArray -}}
{{- $found := "" -}}
{{- $steps := splitList "\n" $path.name -}}
{{- range $at := untilStep (len $steps) 0 -1 -}}
{{- $prefix := slice $steps 0 $at | join "." -}}
{{- if and (not $found) (or (hasKey $known.upstream $prefix) (has $prefix $known.own)) -}}{{- $found = $prefix -}}{{- end -}}
{{- end -}}
{{- $name := join "." $steps -}}
{{- if not $found -}}
{{- if or $root.Chart.IsRoot (not (hasPrefix "global." $name)) -}}
{{- if or (has $name $known.groups) (eq $name "global") -}}
{{- else if $reused -}}
{{- if $path.value -}}{{- $without = append $without (printf "%s: not a value of HAMi's chart up to v2.10." $name) -}}{{- end -}}
{{- else -}}
{{- fail (printf "unknown value %s; the nearest are %s. The chart's README and docs/helm-values.md list all values" $name (include "hami.nearest" (list $name $known))) -}}
{{- end -}}
{{- end -}}
{{- else if hasKey $known.upstream $found -}}
{{- $row := get $known.upstream $found -}}
{{- $usual := and (empty $path.value) (not (kindIs "bool" $path.value)) -}}
{{- range $row.defaults -}}{{- if eq (toJson .) (toJson $path.value) -}}{{- $usual = true -}}{{- end -}}{{- end -}}
{{- if and (not $usual) (eq $row.effect "refused") (not $row.checked) -}}
{{- fail (printf "%s is %s, which cannot be: %s" $name (toJson $path.value) $row.text) -}}
{{- else if and (not $usual) (eq $row.effect "none") -}}
{{- $without = append $without (printf "%s: %s" $name $row.text) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $_ := set $root.Facts "withoutEffect" $without -}}
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
