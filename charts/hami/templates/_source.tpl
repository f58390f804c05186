{{/* The manifests of this project, as objects that the other templates change. Their files are those of kustomize. */}}

{{/* hami.fullname: as in HAMi's chart, so that a release keeps the names of its objects. */}}
{{- define "hami.fullname" -}}
{{- $name := .v.nameOverride | default "hami" -}}
{{- if .v.fullnameOverride -}}
{{- .v.fullnameOverride -}}
{{- else if contains $name .root.Release.Name -}}
{{- .root.Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .root.Release.Name $name -}}
{{- end -}}
{{- end -}}

{{- define "hami.namespace" -}}
{{- .v.namespaceOverride | default .root.Release.Namespace -}}
{{- end -}}

{{/* hami.text: a file of the manifests with the names and the namespace of the release. Argument: ctx, path. */}}
{{- define "hami.text" -}}
{{- $ctx := index . 0 -}}
{{- $text := $ctx.root.Files.Get (printf "manifests/%s" (index . 1)) -}}
{{- if not $text -}}{{- fail (printf "the chart lacks manifests/%s: package it with `helm package`, which follows links" (index . 1)) -}}{{- end -}}
{{- if ne $ctx.name "hami" -}}
{{- $keys := `\b(name|secretName|serviceAccountName|policyName|roleName): ` -}}
{{- $flags := `--self-signed-(?:cert-secret|webhook|previous-secret)=|kube-system/|resourceNames: \[|resourceNames, value: \[|\||\[\^:\]\*|contains\('` -}}
{{- $text = regexReplaceAll (printf `(%s|%s|- )hami-([a-z-]+)` $keys $flags) $text (printf "${1}%s-${3}" $ctx.name) -}}
{{- end -}}
{{- /* the accounts of Kubernetes' own controllers stay where they are */ -}}
{{- $parts := list -}}
{{- range splitList "system:serviceaccount:kube-system:" $text -}}{{- $parts = append $parts (replace "kube-system" $ctx.namespace .) -}}{{- end -}}
{{- join "system:serviceaccount:kube-system:" $parts -}}
{{- end -}}

{{/* hami.load: adds the objects of a file to ctx.objects. Argument: ctx, path. */}}
{{- define "hami.load" -}}
{{- $ctx := index . 0 -}}
{{- range regexSplit "(?m)^---$" (include "hami.text" .) -1 -}}
{{- $object := fromYaml . -}}
{{- if $object -}}
{{- if hasKey $object "Error" -}}{{- fail $object.Error -}}{{- end -}}
{{- $_ := set $ctx.objects (printf "%s/%s" $object.kind $object.metadata.name) $object -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* hami.drop: removes all objects whose name ends with a word. Argument: ctx, word, kinds (empty: all). */}}
{{- define "hami.drop" -}}
{{- $ctx := index . 0 -}}
{{- $kinds := index . 2 -}}
{{- $name := printf "%s-%s" $ctx.name (index . 1) -}}
{{- range $key := keys $ctx.objects -}}
{{- $object := get $ctx.objects $key -}}
{{- if and (eq $object.metadata.name $name) (or (not $kinds) (has $object.kind $kinds)) -}}
{{- $_ := unset $ctx.objects $key -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* hami.component: applies a kustomization: its resources, components and JSON patches. Argument: ctx, folder. */}}
{{- define "hami.component" -}}
{{- $ctx := index . 0 -}}
{{- $folder := index . 1 -}}
{{- $component := include "hami.text" (list $ctx (printf "%s/kustomization.yaml" $folder)) | fromYaml -}}
{{- range $component.resources -}}
{{- if hasSuffix ".yaml" . -}}{{- include "hami.load" (list $ctx (printf "%s/%s" $folder .)) -}}{{- end -}}
{{- end -}}
{{- range $component.components -}}{{- include "hami.component" (list $ctx (clean (printf "%s/%s" $folder .))) -}}{{- end -}}
{{- range $component.patches -}}
{{- $text := .patch -}}
{{- if .path -}}{{- $text = include "hami.text" (list $ctx (printf "%s/%s" $folder .path)) -}}{{- end -}}
{{- include "hami.patchAll" (list $ctx .target (fromYamlArray $text)) -}}
{{- end -}}
{{- end -}}

{{/* hami.patchAll: applies JSON patches to all objects of a target of kustomize. Argument: ctx, target, patches. */}}
{{- define "hami.patchAll" -}}
{{- $ctx := index . 0 -}}
{{- $target := index . 1 -}}
{{- $patches := index . 2 -}}
{{- range $key, $object := $ctx.objects -}}
{{- if and (eq $object.kind $target.kind) (regexMatch (printf "^(%s)$" $target.name) $object.metadata.name) -}}
{{- range $patches -}}
{{- include "hami.patch" (list $object .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* hami.patch: one operation of RFC 6902: test, add, replace or remove. Argument: object, patch. A list is replaced in
the map that holds it, because templates cannot change lists. */}}
{{- define "hami.patch" -}}
{{- $here := index . 0 -}}
{{- $patch := index . 1 -}}
{{- $steps := splitList "/" (trimPrefix "/" $patch.path) -}}
{{- $last := last $steps | replace "~1" "/" | replace "~0" "~" -}}
{{- $holder := dict -}}
{{- $key := "" -}}
{{- range initial $steps -}}
{{- $step := . | replace "~1" "/" | replace "~0" "~" -}}
{{- if kindIs "map" $here -}}
{{- $holder = $here -}}
{{- $key = $step -}}
{{- $here = get $here $step -}}
{{- else -}}
{{- $here = index $here (int $step) -}}
{{- end -}}
{{- end -}}
{{- if kindIs "map" $here -}}
{{- if eq $patch.op "remove" -}}
{{- $_ := unset $here $last -}}
{{- else if ne $patch.op "test" -}}
{{- $_ := set $here $last (deepCopy $patch.value) -}}
{{- else if ne (toJson (get $here $last)) (toJson $patch.value) -}}
{{- fail (printf "the manifests have changed: %s is not %s" $patch.path (toJson $patch.value)) -}}
{{- end -}}
{{- else if eq $last "-" -}}
{{- $_ := set $holder $key (append $here (deepCopy $patch.value)) -}}
{{- else -}}
{{- $at := int $last -}}
{{- $rest := slice $here $at -}}
{{- if eq $patch.op "test" -}}
{{- if ne (toJson (index $here $at)) (toJson $patch.value) -}}
{{- fail (printf "the manifests have changed: %s is not %s" $patch.path (toJson $patch.value)) -}}
{{- end -}}
{{- else -}}
{{- if ne $patch.op "add" -}}{{- $rest = slice $here (add1 $at) -}}{{- end -}}
{{- $between := list -}}
{{- if ne $patch.op "remove" -}}{{- $between = list (deepCopy $patch.value) -}}{{- end -}}
{{- $_ := set $holder $key (concat (slice $here 0 $at) $between $rest) -}}
{{- end -}}
{{- end -}}
{{- end -}}
