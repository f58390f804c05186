{{/* The objects of a release: those of the manifests, with the values. */}}

{{- define "hami.objects" -}}
{{- $ctx := . -}}
{{- $v := .v -}}
{{- include "hami.devices" $ctx -}}
{{- $_ := set $ctx "objects" dict -}}
{{- $base := .root.Files.Get "manifests/base/kustomization.yaml" | fromYaml -}}
{{- range $base.resources -}}{{- include "hami.load" (list $ctx (printf "base/%s" .)) -}}{{- end -}}
{{- if eq .certificates "self-signed" -}}
{{- include "hami.component" (list $ctx "overlays/self-signed") -}}
{{- else if eq .certificates "cert-manager" -}}
{{- include "hami.load" (list $ctx "overlays/cert-manager/certificates.yaml") -}}
{{- include "hami.component" (list $ctx "overlays/cert-manager") -}}
{{- end -}}
{{- if .hamiLimiter -}}{{- include "hami.component" (list $ctx "components/hami-limiter") -}}{{- end -}}
{{- if or $v.mig (ne $v.devicePlugin.migStrategy "none") -}}{{- include "hami.component" (list $ctx "components/mig") -}}{{- end -}}
{{- if $v.limiter.regionMount -}}{{- include "hami.component" (list $ctx "components/region-mount") -}}{{- end -}}
{{- if $v.selinux.enabled -}}{{- include "hami.component" (list $ctx "components/selinux") -}}{{- end -}}
{{- if .strict -}}{{- include "hami.component" (list $ctx "components/strict") -}}{{- end -}}
{{- if eq $v.admission.mode "policy" -}}{{- include "hami.component" (list $ctx "components/admission-policies") -}}{{- end -}}
{{- if $v.prometheus.enabled -}}{{- include "hami.component" (list $ctx "components/prometheus") -}}{{- end -}}
{{- if $v.dashboard.enabled -}}{{- include "hami.component" (list $ctx "components/dashboard") -}}{{- end -}}
{{- if $v.dra.enabled -}}{{- include "hami.dra" $ctx -}}{{- end -}}
{{- if eq .preemption "off" -}}{{- include "hami.component" (list $ctx "components/no-preemption") -}}{{- end -}}
{{- if $v.gpuOperator.client -}}{{- include "hami.component" (list $ctx "components/gpu-operator-client") -}}{{- end -}}
{{- if eq $v.scheduler.remediation.mode "evict" -}}{{- include "hami.component" (list $ctx "components/remediation") -}}{{- end -}}
{{- if eq $v.scheduler.cleanRejected "none" -}}{{- include "hami.component" (list $ctx "components/no-clean-rejected") -}}{{- end -}}
{{- if $v.devicePlugin.mockCards -}}{{- include "hami.component" (list $ctx "overlays/kind") -}}{{- end -}}
{{- range $key, $object := .objects -}}
{{- $drop := and (not $v.policies.enabled) (hasPrefix "ValidatingAdmissionPolicy" $object.kind) -}}
{{- $drop = or $drop (and (not $ctx.networkPolicies) (eq $object.kind "NetworkPolicy")) -}}
{{- $drop = or $drop (and (not $v.disruptionBudget.enabled) (eq $object.kind "PodDisruptionBudget")) -}}
{{- $drop = or $drop (and (not $v.scheduler.admissionWebhook.enabled) (eq $object.kind "MutatingWebhookConfiguration")) -}}
{{- if $drop -}}{{- $_ := unset $ctx.objects $key -}}{{- end -}}
{{- /* those of preemption and remediation are about our own account, which has no transition, and that of requests replaces the webhook */ -}}
{{- $warns := and $ctx.policiesWarn (not (has $object.metadata.name (list (printf "%s-preemption" $ctx.name) (printf "%s-remediation" $ctx.name) (printf "%s-nvidia-requests" $ctx.name)))) -}}
{{- if and $warns (eq $object.kind "ValidatingAdmissionPolicyBinding") -}}{{- $_ := set $object.spec "validationActions" (list "Warn" "Audit") -}}{{- end -}}
{{- end -}}
{{- if not $v.devicePlugin.enabled -}}{{- include "hami.drop" (list $ctx "device-plugin" list) -}}{{- end -}}
{{- if not .monitor -}}{{- include "hami.drop" (list $ctx "monitor" list) -}}{{- end -}}
{{- include "hami.configMaps" $ctx -}}
{{- include "hami.labeled" $ctx -}}
{{- include "hami.prometheus" $ctx -}}
{{- include "hami.scheduler" $ctx -}}
{{- include "hami.dashboard" $ctx -}}
{{- include "hami.webhook" $ctx -}}
{{- include "hami.rights" $ctx -}}
{{- include "hami.node" $ctx -}}
{{- end -}}

{{/* hami.dra: a resource of the extender cannot also stand for claims: the webhook hands its pods to our scheduler. */}}
{{- define "hami.dra" -}}
{{- $resource := .v.dra.extendedResource -}}
{{- include "hami.component" (list . "components/dra") -}}
{{- if .v.dra.allocate -}}{{- include "hami.component" (list . "components/dra-allocate") -}}{{- end -}}
{{- if $resource -}}
{{- if has $resource .resources -}}
{{- fail (printf "dra.extendedResource is %s, a resource of the device plugin, whose pods would no longer be placed: name another one (docs/dra.md)" $resource) -}}
{{- end -}}
{{- $_ := set (get .objects "DeviceClass/gpu.hami.io").spec "extendedResourceName" $resource -}}
{{- end -}}
{{- end -}}

{{- define "hami.configMaps" -}}
{{- $ctx := . -}}
{{- $v := .v -}}
{{- $config := .root.Files.Get "manifests/base/node-config.json" -}}
{{- with $v.devicePlugin.nodeConfiguration.config -}}
{{- if hasKey (fromJson .) "Error" -}}{{- fail (printf "devicePlugin.nodeConfiguration.config is not JSON: %s" (fromJson .).Error) -}}{{- end -}}
{{- $config = . -}}
{{- end -}}
{{- $data := dict "kube-scheduler" (dict "config.yaml" (include "hami.schedulerConfig" .)) -}}
{{- $device := dict "device-config.yaml" .deviceConfig -}}
{{- $usualPods := $v.scheduler.usualPods -}}
{{- with $usualPods -}}
{{- $list := fromYamlArray . -}}
{{- if not (kindIs "map" (first $list)) -}}{{- fail (printf "scheduler.usualPods is not a YAML list of kinds of pods: %v" (first $list | default "it is empty")) -}}{{- end -}}
{{- $_ := set $device "usual-pods.yaml" . -}}
{{- end -}}
{{- $_ := set $data "scheduler-device" $device -}}
{{- if not $v.devicePlugin.nodeConfiguration.externalConfigName -}}{{- $_ := set $data "device-plugin" (dict "config.json" $config) -}}{{- end -}}
{{- if $v.dashboard.grafana -}}{{- $_ := set $data "dashboard" (dict "hami.json" (.root.Files.Get "files/dashboard.json") "hami-namespace.json" (.root.Files.Get "files/dashboard-namespace.json")) -}}{{- end -}}
{{- range $name, $content := $data -}}
{{- $metadata := dict "name" (printf "%s-%s" $ctx.name $name) "namespace" $ctx.namespace -}}
{{- if eq $name "dashboard" -}}{{- $_ := set $metadata "labels" (dict "grafana_dashboard" "1") -}}{{- end -}}
{{- $_ := set $ctx.objects (printf "ConfigMap/%s" $metadata.name) (dict "apiVersion" "v1" "kind" "ConfigMap" "metadata" $metadata "data" $content) -}}
{{- end -}}
{{- $sums := dict "checksum/device-config" (sha256sum .deviceConfig) -}}
{{- $_ := set $ctx "schedulerSums" (merge (dict "checksum/scheduler-config" (include "hami.schedulerConfig" . | sha256sum)) $sums) -}}
{{- $_ := set $ctx "pluginSums" (merge (dict "checksum/node-config" (sha256sum $config)) $sums) -}}
{{- $_ := set $ctx "dashboardSums" (deepCopy $sums) -}}
{{- with $usualPods -}}{{- range list $ctx.schedulerSums $ctx.dashboardSums -}}{{- $_ := set . "checksum/usual-pods" (sha256sum $usualPods) -}}{{- end -}}{{- end -}}
{{- $_ := set $ctx "deviceSums" $sums -}}
{{- end -}}

{{/* hami.labeled: the labels of the release; selectors get those of HAMi's chart, which cannot change in place. */}}
{{- define "hami.labeled" -}}
{{- $ctx := . -}}
{{- $all := merge (dict "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version) "app.kubernetes.io/version" (toString .root.Chart.AppVersion) "app.kubernetes.io/managed-by" .root.Release.Service) .labels -}}
{{- range $key, $object := .objects -}}
{{- $_ := set $object.metadata "labels" (merge (deepCopy $all) ($object.metadata.labels | default dict)) -}}
{{- if eq $object.kind "Service" -}}
{{- $_ := set $object.spec "selector" (merge (deepCopy $ctx.labels) $object.spec.selector) -}}
{{- else if has $object.kind (list "Deployment" "DaemonSet" "PodDisruptionBudget") -}}
{{- $_ := set $object.spec.selector "matchLabels" (merge (deepCopy $ctx.labels) $object.spec.selector.matchLabels) -}}
{{- else if eq $object.kind "NetworkPolicy" -}}
{{- $_ := set $object.spec.podSelector "matchLabels" (merge (deepCopy $ctx.labels) $object.spec.podSelector.matchLabels) -}}
{{- end -}}
{{- if has $object.kind (list "Deployment" "DaemonSet" "ServiceMonitor" "PodMonitor" "PrometheusRule") -}}
{{- $_ := set $object.metadata "labels" (merge $object.metadata.labels ($ctx.v.global.labels | default dict)) -}}
{{- end -}}
{{- if has $object.kind (list "Deployment" "DaemonSet") -}}
{{- $template := $object.spec.template -}}
{{- $_ := set $template.metadata "labels" (merge (dict "app.kubernetes.io/managed-by" $ctx.root.Release.Service) $ctx.labels $template.metadata.labels) -}}
{{- range (dig "affinity" "podAntiAffinity" "preferredDuringSchedulingIgnoredDuringExecution" list $template.spec) -}}
{{- $selector := .podAffinityTerm.labelSelector -}}
{{- $_ := set $selector "matchLabels" (merge (deepCopy $ctx.labels) $selector.matchLabels) -}}
{{- end -}}
{{- with $ctx.v.global.annotations -}}{{- $_ := set $object.metadata "annotations" (deepCopy .) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* hami.prometheus: what values say of monitors and rules. */}}
{{- define "hami.prometheus" -}}
{{- $p := .v.prometheus -}}
{{- range $key, $object := .objects -}}
{{- if has $object.kind (list "ServiceMonitor" "PodMonitor" "PrometheusRule") -}}
{{- $_ := set $object.metadata "labels" (merge (deepCopy ($p.labels | default dict)) $object.metadata.labels) -}}
{{- range concat ($object.spec.endpoints | default list) ($object.spec.podMetricsEndpoints | default list) -}}
{{- if $p.interval -}}{{- $_ := set . "interval" $p.interval -}}{{- end -}}
{{- end -}}
{{- range $object.spec.groups -}}
{{- if $p.rulesInterval -}}{{- $_ := set . "interval" $p.rulesInterval -}}{{- end -}}
{{- range .rules -}}
{{- if and .alert $p.runbookUrl -}}{{- $_ := set .annotations "runbook_url" (printf "%s#%s" $p.runbookUrl (lower .alert)) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* hami.flag: sets a flag of a container, or adds it. Argument: container, name, value. */}}
{{- define "hami.flag" -}}
{{- $container := index . 0 -}}
{{- $prefix := printf "--%s=" (index . 1) -}}
{{- $new := printf "%s%v" $prefix (index . 2) -}}
{{- $words := list -}}
{{- $there := false -}}
{{- range $container.command -}}
{{- if hasPrefix $prefix . -}}{{- $there = true -}}{{- $words = append $words $new -}}{{- else -}}{{- $words = append $words . -}}{{- end -}}
{{- end -}}
{{- if not $there -}}{{- $words = append $words $new -}}{{- end -}}
{{- $_ := set $container "command" $words -}}
{{- end -}}

{{/* hami.env: sets environment variables, a map or a list. Argument: container, variables. */}}
{{- define "hami.env" -}}
{{- $container := index . 0 -}}
{{- $new := index . 1 -}}
{{- if kindIs "map" $new -}}
{{- $listed := list -}}
{{- range $name, $value := $new -}}{{- $listed = append $listed (dict "name" $name "value" (toString $value)) -}}{{- end -}}
{{- $new = $listed -}}
{{- end -}}
{{- $_ := set $container "env" (concat ($container.env | default list) ($new | default list)) -}}
{{- end -}}

{{/* hami.container: what values say of a container. Argument: ctx, pod, container, image, value of the image, resources. */}}
{{- define "hami.container" -}}
{{- $ctx := index . 0 -}}
{{- $pod := index . 1 -}}
{{- $container := index . 2 -}}
{{- $image := index . 4 -}}
{{- $_ := set $container "image" (index . 3) -}}
{{- with $image.pullPolicy -}}{{- $_ := set $container "imagePullPolicy" . -}}{{- end -}}
{{- with index . 5 -}}{{- $_ := set $container "resources" . -}}{{- end -}}
{{- $secrets := $pod.imagePullSecrets | default list -}}
{{- range concat ($ctx.v.global.imagePullSecrets | default list) ($ctx.v.imagePullSecrets | default list) ($image.pullSecrets | default list) -}}
{{- $secrets = append $secrets (ternary (dict "name" .) . (kindIs "string" .)) -}}
{{- end -}}
{{- with uniq $secrets -}}{{- $_ := set $pod "imagePullSecrets" . -}}{{- end -}}
{{- end -}}

{{/* hami.decisionFlags: the flags that decide about pods, which scheduler and dashboard share. Argument: ctx, container. */}}
{{- define "hami.decisionFlags" -}}
{{- $ctx := index . 0 -}}
{{- $container := index . 1 -}}
{{- $s := $ctx.v.scheduler -}}
{{- $flags := list
  (list "node-scheduler-policy" $s.defaultSchedulerPolicy.nodeSchedulerPolicy)
  (list "gpu-scheduler-policy" $s.defaultSchedulerPolicy.gpuSchedulerPolicy)
  (list "enable-ascend" $ctx.v.devices.ascend.enabled) (list "enable-iluvatar" $ctx.v.devices.iluvatar.enabled)
-}}
{{- if $s.usualPods -}}{{- $flags = append $flags (list "usual-pods" "/etc/hami/usual-pods.yaml") -}}{{- end -}}
{{- if $ctx.takeOver -}}{{- $_ := set $container "command" (append $container.command "--foreign-reservations") -}}{{- end -}}
{{- $selector := deepCopy ($s.nodeLabelSelector | default dict) -}}
{{- if $ctx.v.global.managedNodeSelectorEnable -}}{{- $selector = merge $selector ($ctx.v.global.managedNodeSelector | default dict) -}}{{- end -}}
{{- $terms := list -}}
{{- range $key, $value := $selector -}}{{- $terms = append $terms (printf "%s=%v" $key $value) -}}{{- end -}}
{{- if $terms -}}{{- $flags = append $flags (list "node-label-selector" (join "," $terms)) -}}{{- end -}}
{{- range $flags -}}{{- include "hami.flag" (list $container (index . 0) (index . 1)) -}}{{- end -}}
{{- end -}}

{{- define "hami.dashboard" -}}
{{- $ctx := . -}}
{{- with get .objects (printf "Deployment/%s-dashboard" .name) -}}
{{- $template := .spec.template -}}
{{- $_ := set $template.metadata "annotations" $ctx.dashboardSums -}}
{{- $container := first $template.spec.containers -}}
{{- $image := $ctx.v.scheduler.extender.image -}}
{{- include "hami.container" (list $ctx $template.spec $container (include "hami.image" (list $ctx $image "hami")) $image dict) -}}
{{- include "hami.decisionFlags" (list $ctx $container) -}}
{{- end -}}
{{- end -}}

{{- define "hami.scheduler" -}}
{{- $ctx := . -}}
{{- $s := .v.scheduler -}}
{{- $deployment := get .objects (printf "Deployment/%s-scheduler" .name) -}}
{{- $_ := set $deployment.spec "replicas" (ternary (int $s.replicas) 1 $s.leaderElect) -}}
{{- $template := $deployment.spec.template -}}
{{- $_ := set $template.metadata "annotations" (merge (deepCopy ($s.podAnnotations | default dict)) .schedulerSums $template.metadata.annotations) -}}
{{- $pod := $template.spec -}}
{{- with $s.priorityClassName -}}{{- $_ := set $pod "priorityClassName" . -}}{{- else -}}{{- $_ := unset $pod "priorityClassName" -}}{{- end -}}
{{- $kube := index $pod.containers 0 -}}
{{- $extender := index $pod.containers 1 -}}
{{- include "hami.container" (list . $pod $kube (include "hami.kubeScheduler" .) $s.kubeScheduler.image $s.kubeScheduler.resources) -}}
{{- include "hami.container" (list . $pod $extender (include "hami.image" (list . $s.extender.image "hami")) $s.extender.image $s.extender.resources) -}}
{{- $more := list -}}
{{- range $s.kubeScheduler.extraNewArgs -}}{{- if not (hasPrefix "--config=" .) -}}{{- $more = append $more . -}}{{- end -}}{{- end -}}
{{- $_ := set $kube "command" (concat $kube.command $more) -}}
{{- $flags := list
  (list "scheduler-name" .v.schedulerName) (list "metrics-bind-address" $s.metricsBindAddress)
  (list "force-overwrite-default-scheduler" $s.forceOverwriteDefaultScheduler)
  (list "leader-elect" $s.leaderElect) (list "leader-elect-resource-name" .v.schedulerName)
-}}
{{- include "hami.decisionFlags" (list . $extender) -}}
{{- $policies := dict "HAMI_NODE_SCHEDULER_POLICY" $s.defaultSchedulerPolicy.nodeSchedulerPolicy "HAMI_GPU_SCHEDULER_POLICY" $s.defaultSchedulerPolicy.gpuSchedulerPolicy -}}
{{- range $extender.env -}}{{- if hasKey $policies .name -}}{{- $_ := set . "value" (get $policies .name) -}}{{- end -}}{{- end -}}
{{- if .v.legacyMetrics -}}{{- $flags = append $flags (list "legacy-metrics" true) -}}{{- end -}}
{{- if eq .preemption "strict" -}}{{- $flags = append $flags (list "preemption" "strict") -}}{{- end -}}
{{- range $name := list "after" "share" "rate" -}}
{{- $value := get $s.remediation $name -}}
{{- if not (kindIs "invalid" $value) -}}{{- $flags = append $flags (list (printf "remediation-%s" $name) $value) -}}{{- end -}}
{{- end -}}
{{- with $s.preemption.minRuntime -}}{{- $flags = append $flags (list "preemption-min-runtime" .) -}}{{- end -}}
{{- range $flags -}}{{- include "hami.flag" (list $extender (index . 0) (index . 1)) -}}{{- end -}}
{{- $_ := set $extender "command" (concat $extender.command ($s.extender.extraArgs | default list)) -}}
{{- range $name, $secret := dict "client-ca" $s.extender.clientCASecret "simulate-client-ca" $s.extender.simulateClientCASecret -}}
{{- if $secret -}}
{{- include "hami.flag" (list $extender (printf "%s-file" $name) (printf "/%s/ca.crt" $name)) -}}
{{- $_ := set $extender "volumeMounts" (append $extender.volumeMounts (dict "name" $name "mountPath" (printf "/%s" $name) "readOnly" true)) -}}
{{- $_ := set $pod "volumes" (append $pod.volumes (dict "name" $name "secret" (dict "secretName" $secret))) -}}
{{- end -}}
{{- end -}}
{{- with $s.nodeLockExpire -}}{{- include "hami.env" (list $extender (dict "HAMI_NODELOCK_EXPIRE" .)) -}}{{- end -}}
{{- $_ := set (index $extender.ports 1) "containerPort" (splitList ":" $s.metricsBindAddress | last | int) -}}
{{- with $s.service.httpTargetPort -}}
{{- /* HAMi's Service finds pods by this port and this label, and so again during a rollback; the leader renews the label */ -}}
{{- include "hami.flag" (list $extender "http_bind" (printf ":%d" (int .))) -}}
{{- $_ := set (index $extender.ports 0) "containerPort" (int .) -}}
{{- $_ := set $template.metadata.labels "hami.io/scheduler-role" "leader" -}}
{{- if lt (int .) 1024 -}}
{{- $_ := set $pod.securityContext "sysctls" (list (dict "name" "net.ipv4.ip_unprivileged_port_start" "value" "0")) -}}
{{- end -}}
{{- end -}}
{{- with $s.nodeSelector -}}{{- $_ := set $pod "nodeSelector" . -}}{{- end -}}
{{- with $s.tolerations -}}{{- $_ := set $pod "tolerations" . -}}{{- end -}}
{{- with $s.nodeName -}}{{- $_ := set $pod "nodeName" . -}}{{- end -}}
{{- $service := get .objects (printf "Service/%s-scheduler" .name) -}}
{{- $type := $s.service.type | default (ternary "NodePort" "ClusterIP" (not (empty $s.service.schedulerPort))) -}}
{{- if or (ne $type "ClusterIP") .takeOver -}}{{- $_ := set $service.spec "type" $type -}}{{- end -}}
{{- $https := index $service.spec.ports 0 -}}
{{- $metrics := index $service.spec.ports 1 -}}
{{- $_ := set $https "port" (int $s.service.httpPort) -}}
{{- $_ := set $metrics "port" (int $s.service.monitorPort) -}}
{{- if eq $type "NodePort" -}}
{{- with $s.service.schedulerPort -}}{{- $_ := set $https "nodePort" (int .) -}}{{- end -}}
{{- if ge (int $s.service.monitorPort) 30000 -}}{{- $_ := set $metrics "nodePort" (int $s.service.monitorPort) -}}{{- end -}}
{{- end -}}
{{- with $s.service.httpTargetPort -}}
{{- /* as in HAMi's Service, or it has no endpoints for a moment; its pods name the port http before v2.8, https from then on */ -}}
{{- $_ := set $https "name" "http" -}}
{{- $_ := set $https "targetPort" (int .) -}}
{{- with get $ctx.objects (printf "NetworkPolicy/%s-scheduler" $ctx.name) -}}
{{- $ingress := first (first .spec.ingress).ports -}}
{{- $_ := set $ingress "port" $https.targetPort -}}
{{- end -}}
{{- end -}}
{{- $_ := set $service.metadata "labels" (merge $service.metadata.labels ($s.service.labels | default dict)) -}}
{{- with $s.service.annotations -}}{{- $_ := set $service.metadata "annotations" . -}}{{- end -}}
{{- end -}}

{{- define "hami.webhook" -}}
{{- $ctx := . -}}
{{- $w := .v.scheduler.admissionWebhook -}}
{{- $name := printf "%s-webhook" .name -}}
{{- with get .objects (printf "MutatingWebhookConfiguration/%s" $name) -}}
{{- $trusted := $ctx.v.certificates.caBundle -}}
{{- $inherited := "" -}}
{{- if not $trusted -}}
{{- $live := lookup "admissionregistration.k8s.io/v1" "MutatingWebhookConfiguration" "" $name -}}
{{- range $live.webhooks -}}
{{- if eq .name "vgpu.hami.io" -}}{{- $inherited = .clientConfig.caBundle -}}{{- end -}}
{{- end -}}
{{- range dig "metadata" "managedFields" list $live -}}
{{- /* Helm would remove what it has written itself, such as certificates.caBundle of the last revision */ -}}
{{- $written := dig "f:webhooks" `k:{"name":"vgpu.hami.io"}` "f:clientConfig" dict (.fieldsV1 | default dict) -}}
{{- if and (eq .manager "helm") (hasKey $written "f:caBundle") -}}{{- $trusted = $inherited -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- range .webhooks -}}
{{- /* which pods reach those of claims, and what happens while they cannot be called, is not for all pods alike */ -}}
{{- $claims := regexMatch `\.dra(-preferred)?\.` .name -}}
{{- if not $claims -}}{{- $_ := set . "failurePolicy" $w.failurePolicy -}}{{- end -}}
{{- if $w.customURL.enabled -}}
{{- $_ := set . "clientConfig" (dict "url" (printf "https://%s:%v%s" $w.customURL.host $w.customURL.port (printf "%s%s" $w.customURL.path (trimPrefix "/webhook" .clientConfig.service.path)))) -}}
{{- else -}}
{{- $_ := set .clientConfig.service "port" (int $ctx.v.scheduler.service.httpPort) -}}
{{- end -}}
{{- if $trusted -}}
{{- $_ := set .clientConfig "caBundle" $trusted -}}
{{- else if and $inherited (eq $ctx.certificates "secret") (ne .name "vgpu.hami.io") -}}
{{- /* not in that of HAMi's chart: a rollback would then remove it */ -}}
{{- $_ := set .clientConfig "caBundle" $inherited -}}
{{- end -}}
{{- include "hami.selector" (list .namespaceSelector $w.namespaceSelector) -}}
{{- if $w.whitelistNamespaces -}}
{{- $_ := set .namespaceSelector "matchExpressions" (append .namespaceSelector.matchExpressions (dict "key" "kubernetes.io/metadata.name" "operator" "NotIn" "values" $w.whitelistNamespaces)) -}}
{{- end -}}
{{- if not (or $w.manageNamespaceSelector $claims) -}}{{- $_ := unset . "namespaceSelector" -}}{{- end -}}
{{- if hasKey . "reinvocationPolicy" -}}{{- $_ := set . "reinvocationPolicy" $w.reinvocationPolicy -}}{{- end -}}
{{- if hasKey . "objectSelector" -}}{{- include "hami.selector" (list .objectSelector $w.objectSelector) -}}{{- end -}}
{{- if and $ctx.overwriteEnv (hasKey . "matchConditions") (not $claims) -}}{{- $_ := unset . "matchConditions" -}}{{- end -}}
{{- range .matchConditions -}}{{- $_ := set . "expression" (include "hami.expression" (list $ctx .expression)) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq .v.admission.mode "policy" -}}{{- include "hami.admission" $ctx -}}{{- end -}}
{{- range $key, $object := .objects -}}
{{- if and (eq $object.kind "ValidatingAdmissionPolicy") (not (hasPrefix (printf "%s-nvidia-" $ctx.name) $object.metadata.name)) -}}
{{- range concat $object.spec.matchConditions $object.spec.validations -}}{{- $_ := set . "expression" (include "hami.expression" (list $ctx .expression)) -}}{{- end -}}
{{- range $object.spec.validations -}}{{- $_ := set . "message" (include "hami.expression" (list $ctx .message) | replace "hami-priority-user" (printf "%s-priority-user" $ctx.name) | replace "hami-preemption-refuser" (printf "%s-preemption-refuser" $ctx.name)) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* hami.admission: the policies that do what the webhook does with pods that request NVIDIA GPUs. */}}
{{- define "hami.admission" -}}
{{- $ctx := . -}}
{{- $w := .v.scheduler.admissionWebhook -}}
{{- $nvidia := .nvidia -}}
{{- if semverCompare "<1.36-0" .root.Capabilities.KubeVersion.Version -}}
{{- fail (printf "admission.mode=policy needs Kubernetes 1.36 (MutatingAdmissionPolicy), and this is %s" .root.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- range $name, $wrong := dict "strict" .strict "scheduler.overwriteEnv" .overwriteEnv "dra.allocate" .v.dra.allocate -}}
{{- if $wrong -}}{{- fail (printf "%s needs admission.mode=webhook: the webhook must see all pods" $name) -}}{{- end -}}
{{- end -}}
{{- if not .v.policies.enabled -}}{{- fail "admission.mode=policy needs policies.enabled" -}}{{- end -}}
{{- range $key, $usual := dict "resourceCountName" "nvidia.com/gpu" "resourceMemoryName" "nvidia.com/gpumem" "resourceMemoryPercentageName" "nvidia.com/gpumem-percentage" "resourceCoreName" "nvidia.com/gpucores" "resourcePriorityName" "nvidia.com/priority" -}}
{{- if not (get $nvidia $key) -}}{{- fail (printf "admission.mode=policy needs nvidia.%s in the device configuration, such as %s" $key $usual) -}}{{- end -}}
{{- end -}}
{{- $schedulers := ternary "['', 'default-scheduler', " "[" .v.scheduler.forceOverwriteDefaultScheduler -}}
{{- $given := dict "schedulerName" (squote .v.schedulerName) "defaultGPUNum" (toString $nvidia.defaultGPUNum) "runtimeClassName" (squote ($nvidia.runtimeClassName | default "")) "gpuCorePolicy" (squote ($nvidia.gpuCorePolicy | default "default")) "memoryFactor" (toString ($nvidia.memoryFactor | default 1)) "defaultCores" (toString ($nvidia.defaultCores | default 0)) -}}
{{- $limits := list -}}
{{- range $namespace, $limit := $nvidia.gpucoresLimits -}}{{- $limits = append $limits (printf "%s: %v" (squote $namespace) $limit) -}}{{- end -}}
{{- $_ := set $given "gpucoresLimits" (printf "{%s}" (join ", " $limits)) -}}
{{- range $key := list "MutatingAdmissionPolicy/%s-nvidia-defaults" "ValidatingAdmissionPolicy/%s-nvidia-requests" "ValidatingAdmissionPolicy/%s-nvidia-wishes" -}}
{{- with get $ctx.objects (printf $key $ctx.name) -}}
{{- $spec := .spec -}}
{{- $mutations := list -}}
{{- range $spec.mutations -}}{{- $mutations = append $mutations .jsonPatch -}}{{- end -}}
{{- range concat $spec.matchConditions $spec.variables ($spec.validations | default list) $mutations -}}
{{- $text := .expression -}}
{{- if and .name (hasKey $given .name) -}}{{- $text = get $given .name -}}{{- end -}}
{{- range $old, $new := $ctx.renamed -}}{{- $text = replace (printf "'%s'" $old) (printf "'%s'" $new) $text -}}{{- end -}}
{{- $text = $text | replace "['', 'default-scheduler', " $schedulers | replace "'hami-scheduler" (printf "'%s" $ctx.v.schedulerName) -}}
{{- $_ := set . "expression" $text -}}
{{- if .message -}}
{{- $message := .message -}}
{{- range $old, $new := $ctx.renamed -}}{{- $message = regexReplaceAll (printf "%s\\b([^-]|$)" $old) $message (printf "%s${1}" $new) -}}{{- end -}}
{{- $_ := set . "message" $message -}}
{{- end -}}
{{- end -}}
{{- include "hami.selector" (list $spec.matchConstraints.namespaceSelector $w.namespaceSelector) -}}
{{- if $w.whitelistNamespaces -}}
{{- $_ := set $spec.matchConstraints.namespaceSelector "matchExpressions" (append $spec.matchConstraints.namespaceSelector.matchExpressions (dict "key" "kubernetes.io/metadata.name" "operator" "NotIn" "values" $w.whitelistNamespaces)) -}}
{{- end -}}
{{- include "hami.selector" (list $spec.matchConstraints.objectSelector $w.objectSelector) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* hami.selector: adds what a value selects. Argument: selector, value. */}}
{{- define "hami.selector" -}}
{{- $selector := index . 0 -}}
{{- $more := index . 1 -}}
{{- with $more.matchLabels -}}{{- $_ := set $selector "matchLabels" . -}}{{- end -}}
{{- with $more.matchExpressions -}}{{- $_ := set $selector "matchExpressions" (concat $selector.matchExpressions .) -}}{{- end -}}
{{- end -}}

{{/* hami.rights: one binding has another name than in HAMi's chart, whose binding names another role: a binding cannot
change its role. */}}
{{- define "hami.rights" -}}
{{- $ctx := . -}}
{{- $role := get .objects (printf "Role/%s-scheduler-kube" .name) -}}
{{- $_ := set (index $role.rules 1) "resourceNames" (list .v.schedulerName) -}}
{{- $role = get .objects (printf "Role/%s-scheduler-extender" .name) -}}
{{- $_ := set (index $role.rules 1) "resourceNames" (list (printf "%s-extender" .v.schedulerName)) -}}
{{- with get .objects (printf "ClusterRoleBinding/%s-device-plugin" .name) -}}
{{- $_ := set .metadata "name" (printf "%s-rights" .metadata.name) -}}
{{- end -}}
{{- /* The scheduler of HAMi, and that of our releases until they had two accounts, runs with the account of kube-scheduler
until its pods are replaced, and deletes no pods. Only such a release has the binding. */ -}}
{{- if or .takeOver (lookup "rbac.authorization.k8s.io/v1" "ClusterRoleBinding" "" (printf "%s-scheduler-rights" .name)) -}}
{{- range $object := .objects -}}
{{- range $object.subjects -}}
{{- $deletes := list (printf "%s-scheduler-preemption" $ctx.name) (printf "%s-scheduler-rejected" $ctx.name) (printf "%s-scheduler-remediation" $ctx.name) -}}
{{- if and (eq .name (printf "%s-scheduler-extender" $ctx.name)) (not (has $object.metadata.name $deletes)) -}}
{{- $both := list . (merge (dict "name" (printf "%s-scheduler" $ctx.name)) .) -}}
{{- $_ := set $object "subjects" $both -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .takeOver -}}
{{- with get .objects (printf "ClusterRole/%s-device-plugin" .name) -}}
{{- /* HAMi's device plugins run until ours replace them, with the same account */ -}}
{{- $_ := set . "rules" (append .rules (dict "apiGroups" (list "") "resources" (list "pods" "nodes") "verbs" (list "get" "list" "watch" "patch" "update"))) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "hami.node" -}}
{{- $ctx := . -}}
{{- $v := .v -}}
{{- $p := .v.devicePlugin -}}
{{- $driverRoot := $p.nvidiaDriverRoot -}}
{{- if has $driverRoot (list "auto" "") -}}{{- $driverRoot = index (dict) "" -}}{{- end -}}
{{- $hook := printf "%s/vgpu" (trimSuffix "/" $v.global.gpuHookPath) -}}
{{- $daemon := get .objects (printf "DaemonSet/%s-device-plugin" .name) -}}
{{- if $daemon -}}
{{- $template := $daemon.spec.template -}}
{{- $_ := set $template.metadata "annotations" (merge (deepCopy ($p.podAnnotations | default dict)) .pluginSums) -}}
{{- $pod := $template.spec -}}
{{- include "hami.onNodes" (list . $pod $hook) -}}
{{- $container := first $pod.containers -}}
{{- $image := include "hami.image" (list . $p.image "hami-device-plugin") -}}
{{- include "hami.container" (list . $pod $container $image $p.image $p.resources) -}}
{{- range $pod.initContainers -}}
{{- if hasPrefix "hami-device-plugin:" .image -}}{{- $_ := set . "image" $image -}}
{{- else if $v.global.imageRegistry -}}{{- $_ := set . "image" (printf "%s/%s" $v.global.imageRegistry (regexReplaceAll "^[^/]+/" .image "")) -}}
{{- else if and $p.image.registry (regexMatch "(^|/)projecthami/hami$" ($p.image.repository | default "")) -}}
{{- /* where the nodes have HAMi's image from now */ -}}
{{- $_ := set . "image" (printf "%s/%s%s" $p.image.registry $p.image.repository (regexFind ":[^/]+$" .image)) -}}
{{- end -}}
{{- end -}}
{{- with $p.updateStrategy -}}{{- $_ := set $daemon.spec "updateStrategy" . -}}
{{- else -}}
{{- /* HAMi's plugin must leave first: it removes the socket that both use */ -}}
{{- if $ctx.takeOver -}}{{- $_ := set $daemon.spec "updateStrategy" (dict "type" "RollingUpdate" "rollingUpdate" (dict "maxSurge" 0 "maxUnavailable" 1)) -}}{{- end -}}
{{- end -}}
{{- if ne $p.migStrategy "none" -}}{{- include "hami.flag" (list $container "mig-strategy" $p.migStrategy) -}}{{- end -}}
{{- if eq (toString $p.disablecorelimit) "true" -}}{{- include "hami.flag" (list $container "disable-core-limit" true) -}}{{- end -}}
{{- if ($ctx.root.Values.mockDevicePlugin | default dict).enabled -}}{{- include "hami.flag" (list $container "publish-capacity" "requests") -}}{{- end -}}
{{- $more := list -}}
{{- range $p.extraArgs -}}{{- if ne . "-v=false" -}}{{- $more = append $more . -}}{{- end -}}{{- end -}}
{{- $_ := set $container "command" (concat $container.command $more) -}}
{{- range $name, $value := dict "PASS_DEVICE_SPECS" $p.passDeviceSpecsEnabled "GDRCOPY_ENABLED" $p.gdrcopyEnabled "GDS_ENABLED" $p.gdsEnabled "MOFED_ENABLED" $p.mofedEnabled "NVIDIA_DRIVER_ROOT" $driverRoot "NVIDIA_CDI_HOOK_PATH" $p.nvidiaHookPath "DEVICE_LIST_STRATEGY" ($p.deviceListStrategy | default nil) -}}
{{- if not (kindIs "invalid" $value) -}}{{- include "hami.env" (list $container (dict $name $value)) -}}{{- end -}}
{{- end -}}
{{- if contains "topology-aware" $v.scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy -}}{{- include "hami.env" (list $container (dict "ENABLE_TOPOLOGY_SCORE" "true")) -}}{{- end -}}
{{- include "hami.env" (list $container $p.extraEnvs) -}}
{{- range $pod.volumes -}}
{{- if eq .name "kubelet" -}}{{- $_ := set .hostPath "path" $p.pluginPath -}}{{- end -}}
{{- if eq .name "plugins-registry" -}}{{- $_ := set .hostPath "path" (printf "%s/plugins_registry" (dir $p.pluginPath)) -}}{{- end -}}
{{- if and (eq .name "node-config") $p.nodeConfiguration.externalConfigName -}}{{- $_ := set .configMap "name" $p.nodeConfiguration.externalConfigName -}}{{- end -}}
{{- end -}}
{{- if $driverRoot -}}
{{- $_ := set $container "volumeMounts" (append $container.volumeMounts (dict "name" "driver-root" "mountPath" "/driver-root" "readOnly" true)) -}}
{{- $_ := set $pod "volumes" (append $pod.volumes (dict "name" "driver-root" "hostPath" (dict "path" $driverRoot "type" "Directory"))) -}}
{{- end -}}
{{- if $p.gpuOperatorToolkitReady.enabled -}}
{{- $file := printf "%s/toolkit-ready" $p.gpuOperatorToolkitReady.hostPath -}}
{{- $wait := dict "name" "toolkit-validation" "image" $image "command" (list "sh" "-c" `until [ -f "$0" ]; do echo "waiting for $0"; sleep 5; done` $file) -}}
{{- $_ := set $wait "securityContext" $container.securityContext -}}
{{- $_ := set $wait "volumeMounts" (list (dict "name" "nvidia-validations" "mountPath" $p.gpuOperatorToolkitReady.hostPath "mountPropagation" "HostToContainer" "readOnly" true)) -}}
{{- $_ := set $pod "initContainers" (prepend ($pod.initContainers | default list) $wait) -}}
{{- $_ := set $pod "volumes" (append $pod.volumes (dict "name" "nvidia-validations" "hostPath" (dict "path" $p.gpuOperatorToolkitReady.hostPath "type" "DirectoryOrCreate"))) -}}
{{- end -}}
{{- end -}}
{{- $daemon = get .objects (printf "DaemonSet/%s-monitor" .name) -}}
{{- if $daemon -}}
{{- $template := $daemon.spec.template -}}
{{- $_ := set $template.metadata "annotations" .deviceSums -}}
{{- $pod := $template.spec -}}
{{- include "hami.onNodes" (list . $pod $hook) -}}
{{- $container := first $pod.containers -}}
{{- $image := include "hami.image" (list . $p.monitor.image "hami-device-plugin") -}}
{{- include "hami.container" (list . $pod $container $image $p.monitor.image $p.monitor.resources) -}}
{{- if $v.legacyMetrics -}}{{- include "hami.flag" (list $container "legacy-metrics" true) -}}{{- end -}}
{{- $_ := set $container "command" (concat $container.command ($p.monitor.extraArgs | default list)) -}}
{{- include "hami.env" (list $container $p.monitor.extraEnvs) -}}
{{- if .takeOver -}}
{{- /* HAMi's monitor is in the pod of its device plugin, which lacks the label */ -}}
{{- $expressions := list (dict "key" "app.kubernetes.io/component" "operator" "In" "values" (list "hami-device-plugin")) (dict "key" "app.kubernetes.io/managed-by" "operator" "DoesNotExist") -}}
{{- $_ := set $pod.affinity "podAntiAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (list (dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" .labels "matchExpressions" $expressions)))) -}}
{{- end -}}
{{- $type := $p.service.type | default (ternary "NodePort" "" (not (empty $p.service.httpPort))) -}}
{{- if $type -}}
{{- $port := dict "name" "monitorport" "port" ($p.service.httpPort | default 31992 | int) "targetPort" "metrics" "protocol" "TCP" -}}
{{- if eq $type "NodePort" -}}{{- $_ := set $port "nodePort" $port.port -}}{{- end -}}
{{- $metadata := dict "name" (printf "%s-device-plugin-monitor" .name) "namespace" .namespace "labels" (merge (deepCopy $daemon.metadata.labels) ($p.service.labels | default dict)) -}}
{{- with $p.service.annotations -}}{{- $_ := set $metadata "annotations" . -}}{{- end -}}
{{- $_ := set .objects (printf "Service/%s" $metadata.name) (dict "apiVersion" "v1" "kind" "Service" "metadata" $metadata "spec" (dict "type" $type "ports" (list $port) "selector" $daemon.spec.selector.matchLabels)) -}}
{{- end -}}
{{- end -}}
{{- if $p.createRuntimeClass -}}
{{- $metadata := dict "name" $p.runtimeClassName "annotations" (dict "helm.sh/hook" "pre-install,pre-upgrade") -}}
{{- $_ := set .objects "RuntimeClass" (dict "apiVersion" "node.k8s.io/v1" "kind" "RuntimeClass" "metadata" $metadata "handler" "nvidia") -}}
{{- end -}}
{{- end -}}

{{/* hami.onNodes: what both pods on GPU nodes have. Argument: ctx, pod, directory of the limiter. */}}
{{- define "hami.onNodes" -}}
{{- $v := (index . 0).v -}}
{{- $pod := index . 1 -}}
{{- $hook := index . 2 -}}
{{- $_ := set $pod "nodeSelector" (deepCopy ($v.devicePlugin.nvidiaNodeSelector | default dict)) -}}
{{- if $v.gpuOperator.client -}}{{- $_ := set $pod.nodeSelector "nvidia.com/gpu.deploy.client" "true" -}}{{- end -}}
{{- $_ := set $pod "tolerations" (concat $pod.tolerations ($v.devicePlugin.tolerations | default list)) -}}
{{- with $v.devicePlugin.runtimeClassName -}}{{- $_ := set $pod "runtimeClassName" . -}}{{- end -}}
{{- with $v.devicePlugin.priorityClassName -}}{{- $_ := set $pod "priorityClassName" . -}}{{- else -}}{{- $_ := unset $pod "priorityClassName" -}}{{- end -}}
{{- range $pod.volumes -}}{{- if eq .name "hook" -}}{{- $_ := set .hostPath "path" $hook -}}{{- end -}}{{- end -}}
{{- range concat $pod.containers ($pod.initContainers | default list) -}}
{{- if has "--hook-path=/usr/local" .command -}}{{- include "hami.flag" (list . "hook-path" $v.global.gpuHookPath) -}}{{- end -}}
{{- range .volumeMounts -}}{{- if eq .name "hook" -}}{{- $_ := set . "mountPath" $hook -}}{{- end -}}{{- end -}}
{{- end -}}
{{- end -}}
