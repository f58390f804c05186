{{/* hami.evictionPolicy: how the account of an extender may evict pods. Argument: root, name. */}}
{{- define "hami.evictionPolicy" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ include "hami.fullname" $root }}-{{ $name }}
  labels: {{- include "hami.labels" (list $root "") | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE]
      resources: [pods/eviction]
  matchConditions:
  - name: extender
    expression: >-
      request.userInfo.username.matches('^system:serviceaccount:[^:]+:[^:]*{{ include "hami.fullname" $root }}-scheduler-extender[^:]*$')
  validations:
  - reason: Forbidden
    expression: >-
      object != null && dyn(object).?deleteOptions.preconditions.uid.orValue('') != ''
      && !has(dyn(object).deleteOptions.gracePeriodSeconds)
    message: an extender may evict only a pod whose uid it names, with the grace period of the pod
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ include "hami.fullname" $root }}-{{ $name }}
  labels: {{- include "hami.labels" (list $root "") | nindent 4 }}
spec:
  policyName: {{ include "hami.fullname" $root }}-{{ $name }}
  validationActions: [Deny]
{{- end -}}
