{{/* hami.evictionRole: the right of the extender to evict pods. Argument: root, name. */}}
{{- define "hami.evictionRole" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ include "hami.fullname" $root }}-scheduler-{{ $name }}
  labels: {{- include "hami.labels" (list $root "") | nindent 4 }}
rules:
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ include "hami.fullname" $root }}-scheduler-{{ $name }}
  labels: {{- include "hami.labels" (list $root "") | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "hami.fullname" $root }}-scheduler-{{ $name }}
subjects:
{{ include "hami.subject" (list $root (include "hami.account" (list $root "scheduler-extender" $root.Values.scheduler.extender.serviceAccount))) }}
{{- end -}}
