{{/* hami.gpuNodes: the nodes of the device plugin and the monitor. Argument: root. */}}
{{- define "hami.gpuNodes" -}}
{{- $selector := merge (dict) (.Values.devicePlugin.nvidiaNodeSelector | default dict) (dict "kubernetes.io/os" "linux") -}}
{{- if .Values.gpuOperator.client -}}{{- $_ := set $selector "nvidia.com/gpu.deploy.client" "true" -}}{{- end -}}
{{- toYaml $selector -}}
{{- end -}}

{{/* hami.nodeConfig: exceptions of nodes, as JSON. Argument: root. */}}
{{- define "hami.nodeConfig" -}}
{{- $config := .Values.devicePlugin.nodeConfiguration.config | default "{\n  \"nodeconfig\": []\n}\n" -}}
{{- if hasKey (fromJson $config) "Error" -}}{{- fail (printf "devicePlugin.nodeConfiguration.config is not JSON: %s" (fromJson $config).Error) -}}{{- end -}}
{{- $config -}}
{{- end -}}

{{/* hami.hamisImage: HAMi's own, for its limiter: from where the nodes have had it. Argument: root. */}}
{{- define "hami.hamisImage" -}}
{{- $image := .Values.devicePlugin.image -}}
{{- if .Values.global.imageRegistry -}}
{{- .Values.global.imageRegistry -}}/projecthami/hami:v2.10.0
{{- else if and $image.registry (regexMatch "(^|/)projecthami/hami$" ($image.repository | default "")) -}}
{{- $image.registry -}}/{{- $image.repository -}}:v2.10.0
{{- else -}}
docker.io/projecthami/hami:v2.10.0
{{- end -}}
{{- end -}}

{{/* hami.pluginSecurityContext: of the container of the device plugin. Argument: root. */}}
{{- define "hami.pluginSecurityContext" -}}
{{- with .Values.devicePlugin.securityContext -}}
{{- toYaml . -}}
{{- else -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
# to remove files that containers of other users have left in their directories, also in sticky ones
{{- if .Facts.mig }}
# SYS_ADMIN: the driver requires it, or its capability devices, to create, destroy or list MIG instances
{{- end }}
{{- if .Values.limiter.memoryWall }}
# SYS_ADMIN: the driver asks for root to limit the memory of a control group
{{- end }}
capabilities: {drop: [ALL], add: [DAC_OVERRIDE, FOWNER{{ if or .Facts.mig .Values.limiter.memoryWall }}, SYS_ADMIN{{ end }}]}
{{- end -}}
{{- end -}}
