{{/* Settings that each are valid, and together are not: the schema cannot say that. Called with a dict of root and driver. */}}
{{- define "drakkar.check" -}}
{{- $driver := .driver -}}
{{- $loopback := or (hasPrefix "127." $driver.http.address) (eq "localhost" $driver.http.address) (eq "[::1]" $driver.http.address) -}}
{{- if and $loopback (not $driver.hostNetwork) -}}
{{- fail (printf "%s.http.address is %s, where the kubelet's probes do not reach the pod: set 0.0.0.0 or [::]" $driver.path $driver.http.address) -}}
{{- end -}}
{{- if and $loopback .root.Values.monitoring.podMonitor.enabled -}}
{{- fail (printf "%s.http.address is %s, where Prometheus does not reach it: set 0.0.0.0 and limit who reaches port %d of the nodes, or turn monitoring.podMonitor off" $driver.path $driver.http.address (int $driver.http.port)) -}}
{{- end -}}
{{- if and $driver.surge $driver.hostNetwork -}}
{{- fail (printf "%s has hostNetwork and surge: two instances cannot have one port of the node; set surge to false" $driver.path) -}}
{{- end -}}
{{- end -}}

{{/* What only one driver of a release can have. Called with a dict of root and drivers. */}}
{{- define "drakkar.checkAll" -}}
{{- $seen := dict -}}
{{- range $driver := .drivers -}}
{{- $name := include "drakkar.name" (dict "root" $.root "driver" $driver) -}}
{{- $own := list (printf "the driver %s" $driver.driverName) (printf "objects named %s (names are cut at 63 characters: shorten fullnameOverride)" $name) -}}
{{- range $class := $driver.deviceClasses -}}
{{- $own = append $own (printf "the DeviceClass %s" $class.name) -}}
{{- end -}}
{{- range $what := $own -}}
{{- if hasKey $seen $what -}}
{{- fail (printf "%s has %s, and so has %s" $driver.path $what (get $seen $what)) -}}
{{- end -}}
{{- $_ := set $seen $what $driver.path -}}
{{- end -}}
{{- end -}}
{{- end -}}
