{{/* hami.clientConfig: where the API server finds a webhook. Argument: root, the end of the path, a CA if there is no other. */}}
{{- define "hami.clientConfig" -}}
{{- $root := index . 0 -}}
{{- $custom := $root.Values.scheduler.admissionWebhook.customURL -}}
{{- if $custom.enabled -}}
url: {{ printf "https://%s:%v%s%s" $custom.host $custom.port $custom.path (index . 1) | toJson }}
{{- else -}}
service:
  name: {{ include "hami.fullname" $root }}-scheduler
  namespace: {{ include "hami.namespace" $root }}
  path: /webhook{{ index . 1 }}
  port: {{ int $root.Values.scheduler.service.httpPort }}
{{- end -}}
{{- $ca := ternary (index . 2) "" (eq $root.Facts.certificates "secret") -}}
{{- with $root.Facts.trustedCA | default $ca }}
caBundle: {{ . }}
{{- end -}}
{{- end -}}

{{/* hami.claimWebhooks: the webhooks through which pods come that get claims by a label, before that of the extender, which
leaves pods alone that request nothing any more. The label of a pod takes precedence; one with an unknown value is denied. While
the webhook cannot be called, pods that require a claim are not created. Pods with such a label that have a claim of the scheduler
come here, too: once they have one, the webhook of the extender leaves them alone. So do pods that name templates which users have
written: the scheduler gives such a pod a claim of its own. Other pods do not reach them. Argument: root. */}}
{{- define "hami.claimWebhooks" -}}
{{- $root := . -}}
{{- $ours := include "hami.nvidiaResources" . | fromJsonArray -}}
{{- $labeled := "- {key: hami.io/allocation-mode, operator: DoesNotExist}" -}}
{{- $dra := "- {key: hami.io/allocation-mode, operator: Exists}\n- {key: hami.io/allocation-mode, operator: NotIn, values: [dra-preferred, device-plugin]}" -}}
{{- $preferred := "- {key: hami.io/allocation-mode, operator: In, values: [dra-preferred]}" -}}
{{- range list
  (dict "name" "pods.dra" "path" "/dra" "failurePolicy" "Fail" "pods" $dra "names" (append $ours "hami.io/claim"))
  (dict "name" "namespaces.dra" "path" "/dra" "failurePolicy" "Fail" "namespaces" "dra" "pods" $labeled "names" $ours)
  (dict "name" "pods.dra-preferred" "path" "/dra-preferred" "failurePolicy" "Ignore" "pods" $preferred "names" (append $ours "hami.io/claim"))
  (dict "name" "namespaces.dra-preferred" "path" "/dra-preferred" "failurePolicy" "Ignore" "namespaces" "dra-preferred" "pods" $labeled "names" $ours)
}}
- name: {{ .name }}.hami.io
  admissionReviewVersions: [v1, v1beta1]
  clientConfig: {{- include "hami.clientConfig" (list $root .path $root.Facts.inheritedCA) | nindent 4 }}
  failurePolicy: {{ .failurePolicy }}
  matchPolicy: Equivalent
  reinvocationPolicy: {{ $root.Values.scheduler.admissionWebhook.reinvocationPolicy }}
  sideEffects: None
  timeoutSeconds: 10
  namespaceSelector: {{- include "hami.namespaceSelector" $root | nindent 4 }}
    {{- with .namespaces }}
    - {key: hami.io/allocation-mode, operator: In, values: [{{ . }}]}
    {{- end }}
  objectSelector: {{- include "hami.selector" $root.Values.scheduler.admissionWebhook.objectSelector | nindent 4 }}
    {{- .pods | nindent 4 }}
  rules:
  - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods], scope: '*'}
  matchConditions:
  - name: requests-nvidia-or-claim
    expression: >-
      [object.spec.containers + object.spec.?initContainers.orValue([])].exists(all,
        all.size() > 100 || all.exists(c,
          [c.?resources.limits.orValue({}), c.?resources.requests.orValue({})].exists(amounts,
            amounts.size() > 50 || amounts.exists(r, r in [
              {{- include "hami.listed" .names | nindent 14 }}]))))
      || object.spec.?resourceClaims.orValue([]).exists(claim, has(claim.resourceClaimTemplateName))
{{- end -}}
{{- end -}}
