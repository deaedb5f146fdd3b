{{/*
The enabled drivers as a JSON list, in one shape for all templates:

  id            names its objects
  path          where its values are, for messages
  driverName    the name in the API
  args          the arguments before the framework's
  mounts        {name, path, mountPath, type, readOnly, mountPropagation} beside those of every driver
  files         the files of its ConfigMap
  surge         whether two instances can run on a node

and image, env, capabilities, hostNetwork, deviceMetadata, deviceStatus, deviceClasses, http, log, resources, nodeSelector, affinity,
tolerations, priorityClassName, maxUnavailable, podLabels, podAnnotations and seLinuxType as in values.yaml.
*/}}
{{- define "drakkar.drivers" -}}
{{- $drivers := list -}}
{{- if .Values.net.enabled -}}
{{- $drivers = append $drivers (merge (include "drakkar.net" . | fromYaml) (omit .Values.net "enabled" "config" "args")) -}}
{{- end -}}
{{- if .Values.pci.enabled -}}
{{- $drivers = append $drivers (merge (include "drakkar.pci" . | fromYaml) (omit .Values.pci "enabled" "config" "args" "simulatedHost")) -}}
{{- end -}}
{{- range $id, $values := .Values.extraDrivers -}}
{{- $drivers = append $drivers (include "drakkar.extra" (dict "id" $id "values" $values) | fromYaml) -}}
{{- end -}}
{{- $drivers | toJson -}}
{{- end -}}

{{/* drakkar-net: works in the node's network namespace and in those of pods, through NRI. */}}
{{- define "drakkar.net" -}}
id: net
path: net
driverName: net.drakkar.dev
surge: false
# The interfaces of the node are those of its network namespace.
hostNetwork: true
deviceStatus: true
capabilities:
  # Interfaces, addresses, routes and settings, on the node and in pods.
  - NET_ADMIN
  # Entering the network namespace of a pod.
  - SYS_ADMIN
  # Asking other hosts for an address before a pod uses it.
  - NET_RAW
args: {{ concat (list "run" "--config=/config/config.yaml" "--sysfs-root=/host/sys" "--dev-root=/host/dev" "--proc-root=/host/proc" (printf "--nri-socket=%s/nri.sock" .Values.node.nriDirectory)) .Values.net.args | toJson }}
files:
  config.yaml: {{ .Values.net.config | toYaml | toJson }}
mounts:
  - {name: nri, path: {{ .Values.node.nriDirectory }}, mountPath: {{ .Values.node.nriDirectory }}, readOnly: true}
  # Network namespaces of pods are mounted here while the driver runs.
  - {name: netns, path: {{ .Values.node.networkNamespaceDirectory }}, mountPath: {{ .Values.node.networkNamespaceDirectory }}, readOnly: true, mountPropagation: HostToContainer}
  - {name: sys, path: /sys, mountPath: /host/sys, type: Directory}
  - {name: dev, path: /dev, mountPath: /host/dev, type: Directory, readOnly: true}
  - {name: proc, path: /proc, mountPath: /host/proc, type: Directory, readOnly: true}
  # The settings of interfaces: a container's own /proc/sys is read-only.
  - {name: settings, path: /proc/sys/net, mountPath: /host/proc/sys/net, type: Directory}
{{- end -}}

{{/* drakkar-pci: writes to the node's sysfs, or to that of a simulated host. */}}
{{- define "drakkar.pci" -}}
{{- $simulated := not (empty .Values.pci.simulatedHost) -}}
id: pci
path: pci
driverName: pci.drakkar.dev
surge: false
hostNetwork: false
deviceStatus: true
# Root owns the files in sysfs that bind drivers; no capability is needed beyond that.
capabilities: []
files:
  config.yaml: {{ .Values.pci.config | toYaml | toJson }}
{{- if $simulated }}
  host.yaml: {{ .Values.pci.simulatedHost | toYaml | toJson }}
args: {{ concat (list "run" "--config=/config/config.yaml" "--simulate=/config/host.yaml") .Values.pci.args | toJson }}
mounts: []
{{- else }}
args: {{ concat (list "run" "--config=/config/config.yaml" "--sysfs-root=/host/sys" "--dev-root=/host/dev" "--proc-root=/host/proc") .Values.pci.args | toJson }}
mounts:
  - {name: sys, path: /sys, mountPath: /host/sys, type: Directory}
  - {name: dev, path: /dev, mountPath: /host/dev, type: Directory, readOnly: true}
  - {name: proc, path: /proc, mountPath: /host/proc, type: Directory, readOnly: true}
{{- end }}
{{- end -}}

{{/* A driver of the user's. `dig` and not `default`: false, 0 and "" are values. */}}
{{- define "drakkar.extra" -}}
{{- $values := .values -}}
id: {{ .id }}
path: extraDrivers.{{ .id }}
driverName: {{ .values.driverName }}
image: {{ dict "repository" "" "tag" (dig "image" "tag" "" $values) "digest" (dig "image" "digest" "" $values) "pullPolicy" (dig "image" "pullPolicy" "IfNotPresent" $values) | merge (dict "repository" (dig "image" "repository" "" $values)) | toJson }}
surge: {{ dig "surge" true $values }}
hostNetwork: {{ dig "hostNetwork" false $values }}
deviceMetadata: {{ dig "deviceMetadata" true $values }}
deviceStatus: {{ dig "deviceStatus" true $values }}
capabilities: {{ dig "capabilities" list $values | toJson }}
args: {{ dig "args" list $values | toJson }}
env: {{ dig "env" list $values | toJson }}
files: {{ if hasKey $values "config" }}{{ dict "config.yaml" ($values.config | toYaml) | toJson }}{{ else }}{}{{ end }}
mounts: {{ dig "hostPaths" list $values | toJson }}
deviceClasses: {{ dig "deviceClasses" (list (dict "name" $values.driverName)) $values | toJson }}
http: {{ dict "address" (dig "http" "address" "0.0.0.0" $values) "port" (dig "http" "port" 9464 $values) | toJson }}
log: {{ dict "verbosity" (dig "log" "verbosity" 0 $values) "format" (dig "log" "format" "text" $values) | toJson }}
resources: {{ dig "resources" (dict "requests" (dict "cpu" "10m" "memory" "32Mi")) $values | toJson }}
nodeSelector: {{ dig "nodeSelector" (dict "kubernetes.io/os" "linux") $values | toJson }}
affinity: {{ dig "affinity" dict $values | toJson }}
tolerations: {{ dig "tolerations" (list (dict "operator" "Exists" "effect" "NoSchedule") (dict "operator" "Exists" "effect" "NoExecute")) $values | toJson }}
priorityClassName: {{ dig "priorityClassName" "system-node-critical" $values | toJson }}
maxUnavailable: {{ dig "maxUnavailable" 1 $values | toJson }}
podLabels: {{ dig "podLabels" dict $values | toJson }}
podAnnotations: {{ dig "podAnnotations" dict $values | toJson }}
seLinuxType: {{ dig "seLinuxType" "spc_t" $values | toJson }}
{{- end -}}
