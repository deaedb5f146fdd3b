{{/* The prefix of names: the release's name, with the chart's name if that is not part of it. */}}
{{- define "drakkar.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name -}}
{{- end -}}
{{- end -}}

{{/* The name of a driver's objects. Called with a dict of root and driver. */}}
{{- define "drakkar.name" -}}
{{- printf "%s-%s" (include "drakkar.fullname" .root) .driver.id | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels by which a DaemonSet finds its pods. They never change. */}}
{{- define "drakkar.selectorLabels" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .driver.id }}
{{- end -}}

{{- define "drakkar.chartLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: {{ .Chart.Name }}
{{- end -}}

{{- define "drakkar.labels" -}}
{{ include "drakkar.selectorLabels" . }}
{{ include "drakkar.chartLabels" .root }}
{{- end -}}

{{- define "drakkar.image" -}}
{{- $image := .driver.image -}}
{{- $repository := required (printf "%s.image.repository is not set: push the image that `cargo xtask image` builds, and name it here" .driver.path) $image.repository -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository ($image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
