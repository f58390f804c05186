{{/* The device configuration, and what follows from its names of resources: for the webhook, the policies, kube-scheduler. */}}

{{/* hami.devices: sets in Facts
deviceConfig  the text of the configuration
nvidia        its section of NVIDIA's GPUs
resources     all names of resources that are served, in the order of the catalog
ignored       those of them that kube-scheduler leaves to the extender: nodes do not offer them
strict, overwriteEnv  whether the webhook must see all pods */}}
{{- define "hami.devices" -}}
{{- $v := .Values -}}
{{- $text := .Files.Get "files/device-config.yaml" -}}
{{- $usual := fromYaml $text -}}
{{- $known := .Files.Get "files/names.json" | fromJson -}}
{{- $renamed := dict -}}
{{- $config := deepCopy $usual -}}
{{- $given := get (get $v "device-config") "content" -}}
{{- if $given -}}
{{- $text = $given -}}
{{- $config = fromYaml $given -}}
{{- if or (not $config) (hasKey $config "Error") -}}
{{- fail (printf "device-config.content is not a YAML map: %s" ($config.Error | default "it has no sections")) -}}
{{- end -}}
{{- /* HAMi has the names of HCUs in the section of DCUs, as hami.codec.device_config reads them */ -}}
{{- $hygon := dig "hygon" "resourceCountName" "" $config -}}
{{- if and (kindIs "string" $hygon) (not (hasKey $config "hcu")) (regexMatch "(^|/)hcu[^/]*$" $hygon) -}}
{{- $_ := set $config "hcu" $config.hygon -}}{{- $_ := unset $config "hygon" -}}
{{- end -}}
{{- include "hami.checkDevices" (list $config $usual) -}}
{{- else -}}
{{- range $place := include "hami.places" $v | fromJsonArray -}}
{{- $section := get $config $place.section -}}
{{- $old := get $section $place.key -}}
{{- $value := $place.value -}}
{{- if and (kindIs "string" $value) (kindIs "bool" $old) -}}{{- $value = eq $value "true" -}}{{- end -}}
{{- if and (not (kindIs "invalid" $value)) (ne (toString $value) (toString $old)) -}}
{{- if and (kindIs "string" $old) (hasPrefix "resource" $place.key) -}}
{{- if not $value -}}
{{- fail (printf "%s is empty: to do without a resource, leave its name out of device-config.content" $place.name) -}}
{{- end -}}
{{- $_ := set $renamed $old $value -}}
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
{{- $now := include "hami.resourcesOf" $served | fromJsonArray -}}
{{- range $now -}}
{{- if not (regexMatch `^[a-z0-9.-]+/[A-Za-z0-9._-]+$` (toString .)) -}}
{{- fail (printf "the device configuration has %q, which is no name of a resource such as nvidia.com/gpu" (toString .)) -}}
{{- end -}}
{{- end -}}
{{- $resources := list -}}
{{- range $known.resources -}}
{{- $name := get $renamed . | default . -}}
{{- if has $name $now -}}{{- $resources = append $resources $name -}}{{- end -}}
{{- end -}}
{{- range $now -}}{{- if not (has . $resources) -}}{{- $resources = append $resources . -}}{{- end -}}{{- end -}}
{{- $native := list -}}
{{- range $section := list "cambricon" "mthreads" -}}
{{- range list "resourceMemoryName" "resourceCoreName" -}}{{- $native = append $native (get (get $served $section | default dict) .) -}}{{- end -}}
{{- end -}}
{{- $ignored := list -}}
{{- range $resources -}}{{- if not (has . $native) -}}{{- $ignored = append $ignored . -}}{{- end -}}{{- end -}}
{{- if has $v.dra.extendedResource $resources -}}
{{- /* its pods would be the webhook's, which hands them to our scheduler */ -}}
{{- fail (printf "dra.extendedResource is %s, a resource of the device plugin, whose pods would no longer be placed: name another one (docs/dra.md)" $v.dra.extendedResource) -}}
{{- end -}}
{{- $nvidia := $config.nvidia | default dict -}}
{{- $_ := set .Facts "deviceConfig" $text -}}
{{- $_ := set .Facts "nvidia" $nvidia -}}
{{- $_ := set .Facts "resources" $resources -}}
{{- $_ := set .Facts "ignored" $ignored -}}
{{- $_ := set .Facts "strict" (or $v.strict (get $nvidia "strict" | default false)) -}}
{{- $_ := set .Facts "overwriteEnv" (eq (toString (get $nvidia "overwriteEnv")) "true") -}}
{{- end -}}

{{/* hami.checkDevices: sections and chips whose keys and names only the Python package knows. Argument: configuration, ours. */}}
{{- define "hami.checkDevices" -}}
{{- $config := index . 0 -}}
{{- $usual := index . 1 -}}
{{- range $section, $value := $config -}}
{{- if and (not (hasKey $usual $section)) (kindIs "map" $value) (include "hami.resourcesOf" (dict "section" $value) | fromJsonArray) -}}
{{- fail (printf "device-config.content has the section %v, of a vendor that this chart does not know, and so not all names of its resources: install with kustomize, after `python -m tools.policies --device-config FILE` (docs/add-a-vendor.md)" $section) -}}
{{- end -}}
{{- end -}}
{{- $chips := list -}}
{{- range concat ($usual.iluvatars | default list) $usual.vnpus.configs -}}{{- $chips = append $chips .commonWord -}}{{- end -}}
{{- range concat ($config.iluvatars | default list) (dig "vnpus" "configs" list $config) -}}
{{- if not (has .commonWord $chips) -}}
{{- fail (printf "device-config.content has the chip %v, whose annotations the policies do not protect: install with kustomize, after `python -m tools.policies --device-config FILE`" .commonWord) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* hami.resourcesOf: a JSON list of the resource names in a device configuration. */}}
{{- define "hami.resourcesOf" -}}
{{- $found := list -}}
{{- range $key, $value := . -}}
{{- if kindIs "map" $value -}}
{{- $found = concat $found (include "hami.resourcesOf" $value | fromJsonArray) -}}
{{- else if kindIs "slice" $value -}}
{{- range $value -}}
{{- if kindIs "map" . -}}{{- $found = concat $found (include "hami.resourcesOf" . | fromJsonArray) -}}{{- end -}}
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
  (list "devices.nvidia.computeOf" "nvidia" "computeOf")
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

{{/* hami.listed: names as the items of a list in CEL, in lines. Argument: a list. */}}
{{- define "hami.listed" -}}
{{- $quoted := list -}}
{{- range . -}}{{- if . -}}{{- $quoted = append $quoted (printf "'%s'" .) -}}{{- end -}}{{- end -}}
{{- join ", " $quoted | wrapWith 104 "\n" -}}
{{- end -}}

{{/* hami.nvidiaResources: a JSON list of the names of NVIDIA's resources. Argument: root. */}}
{{- define "hami.nvidiaResources" -}}
{{- $n := .Facts.nvidia -}}
{{- $names := list -}}
{{- range list "resourceCountName" "resourceMemoryName" "resourceMemoryPercentageName" "resourceCoreName" "resourcePriorityName" -}}
{{- with get $n . -}}{{- $names = append $names . -}}{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{/* hami.capacities: a JSON list of what the device plugin publishes in the capacity of its node. Argument: root. */}}
{{- define "hami.capacities" -}}
{{- $n := .Facts.nvidia -}}
{{- $names := list -}}
{{- range list "resourceMemoryName" "resourceCoreName" -}}
{{- with get $n . -}}{{- $names = append $names (regexReplaceAll "([^/]+)$" . "total-${1}") -}}{{- end -}}
{{- end -}}
{{- range list "resourceMemoryName" "resourceMemoryPercentageName" "resourceCoreName" -}}
{{- with get $n . -}}{{- $names = append $names . -}}{{- end -}}
{{- end -}}
{{- append $names "hami.io/claim" | toJson -}}
{{- end -}}

{{/* hami.otherResources: a JSON list of the names of resources that are not NVIDIA's. Argument: root. */}}
{{- define "hami.otherResources" -}}
{{- $ours := include "hami.nvidiaResources" . | fromJsonArray -}}
{{- $names := list -}}
{{- range .Facts.resources -}}{{- if not (has . $ours) -}}{{- $names = append $names . -}}{{- end -}}{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{/* hami.coresLimits: a map in CEL: percent of a GPU by namespace. Argument: root. */}}
{{- define "hami.coresLimits" -}}
{{- $limits := list -}}
{{- range $namespace, $limit := .Facts.nvidia.gpucoresLimits -}}{{- $limits = append $limits (printf "'%s': %v" $namespace $limit) -}}{{- end -}}
{{- printf "{%s}" (join ", " $limits) -}}
{{- end -}}

{{/* hami.schedulers: a list in CEL: the schedulers of pods that HAMi admits. Argument: root. */}}
{{- define "hami.schedulers" -}}
[{{ if .Values.scheduler.forceOverwriteDefaultScheduler }}'', 'default-scheduler', {{ end }}'{{ .Values.schedulerName }}', '{{ .Values.schedulerName }}-claims']
{{- end -}}
