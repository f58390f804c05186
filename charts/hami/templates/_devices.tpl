{{/* The device configuration, and what follows from its resource names: the webhook, the policies, kube-scheduler. */}}

{{/* hami.devices: sets deviceConfig (text), resources, renamed, dropped, added, nvidia and strict in ctx. */}}
{{- define "hami.devices" -}}
{{- $ctx := . -}}
{{- $v := .v -}}
{{- $text := .root.Files.Get "manifests/base/device-config.yaml" -}}
{{- $usual := fromYaml $text -}}
{{- $before := include "hami.resources" $usual | fromJsonArray -}}
{{- $renamed := dict -}}
{{- $config := deepCopy $usual -}}
{{- $given := get (get $v "device-config") "content" -}}
{{- if $given -}}
{{- $text = $given -}}
{{- $config = fromYaml $given -}}
{{- /* HAMi has the names of HCUs in the section of DCUs, as hami.codec.device_config reads them */ -}}
{{- $hygon := dig "hygon" "resourceCountName" "" $config -}}
{{- if and (kindIs "string" $hygon) (not (hasKey $config "hcu")) (regexMatch "(^|/)hcu[^/]*$" $hygon) -}}
{{- $_ := set $config "hcu" $config.hygon -}}{{- $_ := unset $config "hygon" -}}
{{- end -}}
{{- if or (not $config) (hasKey $config "Error") -}}
{{- fail (printf "device-config.content is not a YAML map: %s" ($config.Error | default "it has no sections")) -}}
{{- end -}}
{{- $chips := list -}}
{{- range concat ($usual.iluvatars | default list) $usual.vnpus.configs -}}{{- $chips = append $chips .commonWord -}}{{- end -}}
{{- range concat ($config.iluvatars | default list) (dig "vnpus" "configs" list $config) -}}
{{- if not (has .commonWord $chips) -}}
{{- fail (printf "device-config.content has the chip %v, whose annotations the policies do not protect: install with kustomize, after `python -m tools.policies --device-config FILE`" .commonWord) -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- range $place := include "hami.places" $v | fromJsonArray -}}
{{- $section := get $config $place.section -}}
{{- $old := get $section $place.key -}}
{{- $value := $place.value -}}
{{- if and (kindIs "string" $value) (kindIs "bool" $old) -}}{{- $value = eq $value "true" -}}{{- end -}}
{{- if and (not (kindIs "invalid" $value)) (ne (toString $value) (toString $old)) -}}
{{- if kindIs "string" $old -}}
{{- if and (hasPrefix "resource" $place.key) (not $value) -}}
{{- fail (printf "%s is empty: to do without a resource, leave its name out of device-config.content" $place.name) -}}
{{- end -}}
{{- if hasPrefix "resource" $place.key -}}{{- $_ := set $renamed $old $value -}}{{- end -}}
{{- end -}}
{{- $_ := set $section $place.key $value -}}
{{- end -}}
{{- end -}}
{{- range $config.vnpus.configs -}}
{{- if $v.devices.ascend.runtimeClassName -}}{{- $_ := set . "runtimeClassName" $v.devices.ascend.runtimeClassName -}}{{- end -}}
{{- if eq (toString $v.scheduler.overwriteEnv) "true" -}}{{- $_ := set . "overwriteEnv" true -}}{{- end -}}
{{- end -}}
{{- if $v.strict -}}{{- $_ := set $config.nvidia "strict" true -}}{{- end -}}
{{- if ne (toJson $config) (toJson $usual) -}}{{- $text = toYaml $config -}}{{- end -}}
{{- end -}}
{{- $switches := dict "vnpus" $v.devices.ascend.enabled "iluvatars" $v.devices.iluvatar.enabled -}}
{{- range list "kunlun" "enflame" "mthreads" "vastai" "biren" -}}{{- $_ := set $switches . (get $v.devices .).enabled -}}{{- end -}}
{{- $served := deepCopy $config -}}
{{- range $section, $on := $switches -}}{{- if not $on -}}{{- $_ := unset $served $section -}}{{- end -}}{{- end -}}
{{- $now := include "hami.resources" $served | fromJsonArray -}}
{{- range $now -}}
{{- if not (regexMatch `^[a-z0-9.-]+/[A-Za-z0-9._-]+$` (toString .)) -}}
{{- fail (printf "the device configuration has %q, which is no name of a resource such as nvidia.com/gpu" (toString .)) -}}
{{- end -}}
{{- end -}}
{{- $kept := list -}}
{{- range $before -}}{{- $kept = append $kept (get $renamed . | default .) -}}{{- end -}}
{{- $dropped := list -}}
{{- range $kept -}}{{- if not (has . $now) -}}{{- $dropped = append $dropped . -}}{{- end -}}{{- end -}}
{{- $added := list -}}
{{- range $now -}}{{- if not (has . $kept) -}}{{- $added = append $added . -}}{{- end -}}{{- end -}}
{{- $native := list -}}
{{- range $section := list "cambricon" "mthreads" -}}
{{- range list "resourceMemoryName" "resourceCoreName" -}}{{- $native = append $native (get (get $served $section | default dict) .) -}}{{- end -}}
{{- end -}}
{{- $_ := set $ctx "deviceConfig" $text -}}
{{- $_ := set $ctx "resources" $now -}}
{{- $_ := set $ctx "renamed" $renamed -}}
{{- $_ := set $ctx "dropped" $dropped -}}
{{- $_ := set $ctx "added" $added -}}
{{- $_ := set $ctx "native" $native -}}
{{- $nvidia := $config.nvidia | default dict -}}
{{- $_ := set $ctx "nvidia" $nvidia -}}
{{- $_ := set $ctx "strict" (or $v.strict (get $nvidia "strict" | default false)) -}}
{{- $_ := set $ctx "overwriteEnv" (eq (toString (get $nvidia "overwriteEnv")) "true") -}}
{{- end -}}

{{/* hami.resources: a JSON list of the resource names in a device configuration. */}}
{{- define "hami.resources" -}}
{{- $found := list -}}
{{- range $key, $value := . -}}
{{- if kindIs "map" $value -}}
{{- $found = concat $found (include "hami.resources" $value | fromJsonArray) -}}
{{- else if kindIs "slice" $value -}}
{{- range $value -}}
{{- if kindIs "map" . -}}{{- $found = concat $found (include "hami.resources" . | fromJsonArray) -}}{{- end -}}
{{- end -}}
{{- else if and (regexMatch "^resource([A-Z].*)?Name[A-Za-z]*$" $key) $value -}}
{{- $found = append $found $value -}}
{{- end -}}
{{- end -}}
{{- toJson (uniq $found) -}}
{{- end -}}

{{/* hami.places: where values belong in the device configuration: a JSON list of {name, value, section, key}. */}}
{{- define "hami.places" -}}
{{- $places := list -}}
{{- $v := . -}}
{{- range $row := list
  (list "resourceName" "nvidia" "resourceCountName") (list "resourceMem" "nvidia" "resourceMemoryName")
  (list "resourceMemPercentage" "nvidia" "resourceMemoryPercentageName") (list "resourceCores" "nvidia" "resourceCoreName")
  (list "resourcePriority" "nvidia" "resourcePriorityName")
  (list "mluResourceName" "cambricon" "resourceCountName") (list "mluResourceMem" "cambricon" "resourceMemoryName")
  (list "mluResourceCores" "cambricon" "resourceCoreName")
  (list "dcuResourceName" "hygon" "resourceCountName") (list "dcuResourceMem" "hygon" "resourceMemoryName")
  (list "dcuResourceCores" "hygon" "resourceCoreName")
  (list "hcuResourceName" "hcu" "resourceCountName") (list "hcuResourceMem" "hcu" "resourceMemoryName")
  (list "hcuResourceCores" "hcu" "resourceCoreName") (list "devices.hygon.memoryFactor" "hcu" "memoryFactor")
  (list "devices.nvidia.memoryFactor" "nvidia" "memoryFactor") (list "devices.mthreads.memoryPerCard" "mthreads" "memoryPerCard")
  (list "metaxResourceName" "metax" "resourceVCountName") (list "metaxResourceMem" "metax" "resourceVMemoryName")
  (list "metaxResourceCore" "metax" "resourceVCoreName") (list "metaxsGPUTopologyAware" "metax" "sgpuTopologyAware")
  (list "enflameResourceNameDRSGCU" "enflame" "resourceNameDRSGCU")
  (list "enflameResourceNameGCUMemory" "enflame" "resourceNameGCUMemory")
  (list "enflameResourceNameGCUCore" "enflame" "resourceNameGCUCore")
  (list "kunlunResourceName" "kunlun" "resourceCountName") (list "kunlunResourceVCountName" "kunlun" "resourceVCountName")
  (list "kunlunResourceVMemoryName" "kunlun" "resourceVMemoryName")
  (list "vastaiResourceName" "vastai" "resourceCountName") (list "birenResourceName" "biren" "resourceCountName")
  (list "scheduler.overwriteEnv" "nvidia" "overwriteEnv")
  (list "scheduler.defaultMem" "nvidia" "defaultMemory") (list "scheduler.defaultCores" "nvidia" "defaultCores")
  (list "scheduler.defaultGPUNum" "nvidia" "defaultGPUNum")
  (list "devicePlugin.deviceSplitCount" "nvidia" "deviceSplitCount")
  (list "devicePlugin.deviceMemoryScaling" "nvidia" "deviceMemoryScaling")
  (list "devicePlugin.deviceCoreScaling" "nvidia" "deviceCoreScaling")
  (list "devicePlugin.enableNumaTopology" "nvidia" "enableNumaTopology")
  (list "devicePlugin.preConfiguredDeviceMemory" "nvidia" "preConfiguredDeviceMemory")
  (list "devicePlugin.runtimeClassName" "nvidia" "runtimeClassName")
  (list "devices.nvidia.gpuCorePolicy" "nvidia" "gpuCorePolicy")
  (list "devices.nvidia.libCudaLogLevel" "nvidia" "libCudaLogLevel")
  (list "devices.nvidia.computeBy" "nvidia" "computeBy")
  (list "devices.ascend.hamiVnpuCore" "vnpus" "hamiVnpuCore")
-}}
{{- $value := $v -}}
{{- range splitList "." (index $row 0) -}}
{{- if kindIs "map" $value -}}{{- $value = get $value . -}}{{- end -}}
{{- if and (kindIs "string" $value) (not $value) -}}{{- $value = "" -}}{{- end -}}
{{- end -}}
{{- if or (kindIs "map" $value) (and (not (hasPrefix "resource" (index $row 2))) (eq (toString $value) "")) -}}
{{- $value = ternary "" nil (eq (index $row 2) "runtimeClassName") -}}
{{- end -}}
{{- $places = append $places (dict "name" (index $row 0) "value" $value "section" (index $row 1) "key" (index $row 2)) -}}
{{- end -}}
{{- toJson $places -}}
{{- end -}}

{{/* hami.expression: an expression of CEL with the resource names of the device configuration. Argument: ctx, text. */}}
{{- define "hami.expression" -}}
{{- $ctx := index . 0 -}}
{{- $text := index . 1 -}}
{{- range $old, $new := $ctx.renamed -}}
{{- $text = replace (printf "'%s'" $old) (printf "'%s'" $new) $text -}}
{{- $old = regexReplaceAll "([^/]+)$" $old "total-${1}" -}}{{- $new = regexReplaceAll "([^/]+)$" $new "total-${1}" -}}
{{- $text = replace (printf "'%s'" $old) (printf "'%s'" $new) $text -}}
{{- end -}}
{{- if or $ctx.dropped $ctx.added -}}
{{- $found := regexFind `\br in \[[^\]]*\]` $text -}}
{{- if $found -}}
{{- $names := list -}}
{{- range regexFindAll `'[^']+'` $found -1 -}}
{{- if not (has (trimAll "'" .) $ctx.dropped) -}}{{- $names = append $names . -}}{{- end -}}
{{- end -}}
{{- range $ctx.added -}}{{- $names = append $names (squote .) -}}{{- end -}}
{{- $text = replace $found (printf "r in [%s]" (join ", " $names)) $text -}}
{{- end -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{/* hami.schedulerConfig: the configuration of kube-scheduler, as text. */}}
{{- define "hami.schedulerConfig" -}}
{{- $ctx := . -}}
{{- $text := .root.Files.Get (ternary "manifests/components/dra-allocate/scheduler-config.yaml" "manifests/base/scheduler-config.yaml" .v.dra.allocate) -}}
{{- $config := fromYaml $text -}}
{{- $_ := set $config.leaderElection "resourceName" .v.schedulerName -}}
{{- $_ := set $config.leaderElection "leaderElect" .v.scheduler.leaderElect -}}
{{- range $config.profiles -}}
{{- $_ := set . "schedulerName" (replace "hami-scheduler" $ctx.v.schedulerName .schedulerName) -}}
{{- end -}}
{{- if semverCompare "<1.33-0" .root.Capabilities.KubeVersion.Version -}}{{- $_ := unset $config "podMaxBackoffSeconds" -}}{{- end -}}
{{- $extender := first $config.extenders -}}
{{- $managed := list -}}
{{- range $extender.managedResources -}}
{{- $name := get $ctx.renamed .name | default .name -}}
{{- if not (has $name $ctx.dropped) -}}{{- $managed = append $managed (dict "name" $name "ignoredByScheduler" true) -}}{{- end -}}
{{- end -}}
{{- range $ctx.added -}}
{{- if not (has . $ctx.native) -}}{{- $managed = append $managed (dict "name" . "ignoredByScheduler" true) -}}{{- end -}}
{{- end -}}
{{- $_ := set $extender "managedResources" $managed -}}
{{- if eq (toJson $config) (toJson (fromYaml $text)) -}}{{- $text -}}{{- else -}}{{- toYaml $config -}}{{- end -}}
{{- end -}}
