{{/* Images, and the secrets to pull them. */}}

{{/* hami.image: one of this project, or that of a value. HAMi's own image counts as unset: ours has other programs.
Argument: root, value, name of ours. */}}
{{- define "hami.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $ours := $root.Values.image -}}
{{- $registry := $image.registry -}}
{{- $repository := $image.repository -}}
{{- $hamis := regexMatch "(^|/)projecthami/hami$" ($repository | default "") -}}
{{- if or $hamis (not $repository) -}}
{{- $repository = index . 2 -}}
{{- $registry = ternary $ours.registry ($registry | default $ours.registry) $hamis -}}
{{- end -}}
{{- $tag := "" -}}
{{- range list $image.tag $root.Values.global.imageTag $ours.tag $root.Chart.AppVersion -}}
{{- $next := . | default "" | toString | trim -}}
{{- if and (not $tag) $next (not (regexMatch `^v?2\.` $next)) -}}{{- $tag = $next -}}{{- end -}}
{{- end -}}
{{- $found := include "hami.reference" (list $root $registry $repository $tag $image.digest) -}}
{{- if not (or (contains "/" $found) $ours.preloaded $root.Values.devicePlugin.mockCards) -}}
{{- fail (printf "the image %s has no registry, and there is no public one: set image.registry (or global.imageRegistry) to where your images are, or image.preloaded=true if the nodes have them" $found) -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{/* hami.reference: an image. Argument: root, registry, repository, tag, digest. */}}
{{- define "hami.reference" -}}
{{- with (index . 0).Values.global.imageRegistry | default (index . 1) -}}{{- . -}}/{{- end -}}
{{- index . 2 -}}
{{- if index . 4 -}}@{{- index . 4 -}}{{- else -}}:{{- index . 3 -}}{{- end -}}
{{- end -}}

{{/* hami.pullSecrets: those of a pod; empty if there are none. Argument: root, values of its images. */}}
{{- define "hami.pullSecrets" -}}
{{- $values := (index . 0).Values -}}
{{- $names := concat ($values.global.imagePullSecrets | default list) ($values.imagePullSecrets | default list) -}}
{{- range slice . 1 -}}{{- $names = concat $names (.pullSecrets | default list) -}}{{- end -}}
{{- $secrets := list -}}
{{- range $names -}}{{- $secrets = append $secrets (ternary (dict "name" .) . (kindIs "string" .)) -}}{{- end -}}
{{- with uniq $secrets -}}{{- toYaml . -}}{{- end -}}
{{- end -}}
