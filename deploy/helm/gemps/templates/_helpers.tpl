{{/* 40 of 63 characters: hash and index of a worker follow. */}}
{{- define "gemps.fullname" -}}
{{- if not (regexMatch "^[a-z]" .Release.Name) -}}
{{- fail (printf "release %s: Services need a name that begins with a letter" .Release.Name) -}}
{{- end -}}
{{- $name := ternary .Release.Name (printf "%s-gemps" .Release.Name) (contains "gemps" .Release.Name) -}}
{{- $name | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels that selectors use: without versions, since selectors cannot be changed. */}}
{{- define "gemps.selector" -}}
app.kubernetes.io/name: gemps
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Labels of the server that workers and viewers reach: of several the first one. */}}
{{- define "gemps.primary" -}}
{{ include "gemps.selector" (dict "root" . "component" "server") }}
{{- if gt (int .Values.server.shards) 1 }}
statefulset.kubernetes.io/pod-name: {{ include "gemps.fullname" . }}-server-0
{{- end }}
{{- end -}}

{{/* Of the shards: a pod's address is its name, a dot, and this. */}}
{{- define "gemps.shards.domain" -}}
{{ include "gemps.fullname" . }}-server.{{ .Release.Namespace }}.svc
{{- end -}}

{{/* Starts the shard whose number ends the pod's name. */}}
{{- define "gemps.shards.command" -}}
{{- $domain := include "gemps.shards.domain" . -}}
shard="${HOSTNAME##*-}"
[ "$shard" = 0 ] || set -- --primary "${HOSTNAME%-*}-0.{{ $domain }}:50051" --shard-address "$HOSTNAME.{{ $domain }}:50051"
{{- if include "gemps.secret" (dict "root" . "role" "operator") }} --primary-credentials /etc/gemps/operator{{ end }}
exec gemps serve --shard "$shard/{{ .Values.server.shards }}" "$@"
{{- end -}}

{{- define "gemps.labels" -}}
{{ include "gemps.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{/* Settings as variables. Large numbers of a values file arrive as 2e+07. */}}
{{- define "gemps.variables" -}}
{{- range $name, $value := . }}
{{- if not (kindIs "invalid" $value) }}
{{- $number := and (kindIs "float64" $value) (eq (floor $value) $value) }}
GEMPS_{{ upper $name }}: {{ ternary (int64 $value | toString) (toString $value) $number | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "gemps.server.variables" -}}
{{- include "gemps.variables" .Values.server.settings }}
GEMPS_LANE_PORT: "50052"
GEMPS_RUN: {{ .Release.Name | quote }}
{{- if include "gemps.secret" (dict "root" . "role" "server") }}
GEMPS_CREDENTIALS: /etc/gemps/credentials
{{- else }}
GEMPS_INSECURE: "true"
{{- end }}
{{- if .Values.dashboard.enabled }}
GEMPS_DASHBOARD: {{ ternary "0.0.0.0" "127.0.0.1" .Values.dashboard.service }}:8080
{{- end }}
{{- $names := .Values.dashboard.hosts }}
{{- if .Values.dashboard.service }}
{{- $name := printf "%s-dashboard" (include "gemps.fullname" .) }}
{{- $long := printf "%s.%s" $name .Release.Namespace }}
{{- $names = concat $names (list $name $long (printf "%s.svc" $long) (printf "%s.svc.cluster.local" $long)) }}
{{- end }}
{{- if $names }}
GEMPS_DASHBOARD_HOSTS: {{ join "," $names | quote }}
{{- end }}
{{- end -}}

{{- define "gemps.worker.variables" -}}
{{- include "gemps.variables" .Values.workers.settings }}
GEMPS_SERVER: {{ include "gemps.fullname" . }}:50051
GEMPS_RUN: {{ .Release.Name | quote }}
GEMPS_WORKERS: {{ .Values.workers.replicas | quote }}
GEMPS_DATASET_DIR: /datasets
{{- if include "gemps.secret" (dict "root" . "role" "worker") }}
GEMPS_CLIENT_CREDENTIALS: /etc/gemps/credentials
{{- end }}
{{- end -}}

{{/* Name of a role's Secret; empty without TLS. */}}
{{- define "gemps.secret" -}}
{{- $given := index .root.Values.credentials .role -}}
{{- if $given.existingSecret -}}
{{ $given.existingSecret }}
{{- else if $given.files -}}
{{ include "gemps.fullname" .root }}-{{ .role }}-credentials
{{- end -}}
{{- end -}}

{{/* What does not fit together. */}}
{{- define "gemps.check" -}}
{{- $server := include "gemps.secret" (dict "root" . "role" "server") -}}
{{- $worker := include "gemps.secret" (dict "root" . "role" "worker") -}}
{{- $operator := include "gemps.secret" (dict "root" . "role" "operator") -}}
{{- range $role := list "server" "worker" "operator" -}}
{{- $given := index $.Values.credentials $role -}}
{{- if and $given.existingSecret $given.files -}}
{{- fail (printf "credentials.%s: give existingSecret or files, not both" $role) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.insecure $server -}}
{{- fail "insecure: true contradicts credentials.server: give one" -}}
{{- end -}}
{{- if not (or .Values.insecure $server) -}}
{{- fail "name the server's Secret in credentials.server.existingSecret (docs/kubernetes.md), or set insecure: true if you trust everyone who reaches its ports" -}}
{{- end -}}
{{- if and $server (not $worker) -}}
{{- fail "credentials.worker: workers need a Secret, too: name it in existingSecret" -}}
{{- end -}}
{{- if and $worker (not $server) -}}
{{- fail "credentials.worker needs credentials.server: without TLS at the server workers cannot use it" -}}
{{- end -}}
{{- if gt (int .Values.server.shards) 1 -}}
{{- if and $server (not $operator) -}}
{{- fail "credentials.operator: with server.shards the servers need an operator's Secret, too: name it in existingSecret" -}}
{{- end -}}
{{- if .Values.server.settings.record -}}
{{- fail "server.settings.record is for one server: leave it out, or set server.shards to 1" -}}
{{- end -}}
{{- if eq .Values.server.serviceType "LoadBalancer" -}}
{{- fail "server.serviceType: workers outside the cluster could not reach all of server.shards: use ClusterIP" -}}
{{- end -}}
{{- end -}}
{{- if and $operator (not (and $server (gt (int .Values.server.shards) 1))) -}}
{{- fail "credentials.operator is for server.shards with credentials.server: leave it out" -}}
{{- end -}}
{{- if and .Values.dashboard.service (not .Values.dashboard.enabled) -}}
{{- fail "dashboard.service needs dashboard.enabled: true" -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.dashboard.service) -}}
{{- fail "metrics.serviceMonitor needs dashboard.service: true, since the dashboard's port serves /metrics" -}}
{{- end -}}
{{- if and .Values.metrics.prometheusRule.enabled (not .Values.metrics.serviceMonitor.enabled) -}}
{{- fail "metrics.prometheusRule needs metrics.serviceMonitor.enabled: true, since its alerts are about what that scrapes" -}}
{{- end -}}
{{- if .Values.networkPolicy.enabled -}}
{{- if and .Values.dashboard.service (not .Values.networkPolicy.viewers) -}}
{{- fail "networkPolicy.viewers: nothing could reach the dashboard and its /metrics: name the pods that may" -}}
{{- end -}}
{{- if and (eq .Values.server.serviceType "LoadBalancer") (not .Values.networkPolicy.clients) -}}
{{- fail "networkPolicy.clients: nothing could come through the LoadBalancer: name the addresses that may" -}}
{{- end -}}
{{- end -}}
{{- range $variable := keys .Values.workers.env -}}
{{- if hasPrefix "GEMPS_" $variable -}}
{{- fail (printf "workers.env.%s: write it into workers.settings as %s" $variable (trimPrefix "GEMPS_" $variable | lower)) -}}
{{- end -}}
{{- end -}}
{{- $count := .Values.workers.succeededCount -}}
{{- if and $count (gt (int $count) (int .Values.workers.replicas)) -}}
{{- fail (printf "workers.succeededCount %v is more than workers.replicas %v" $count .Values.workers.replicas) -}}
{{- end -}}
{{- if and $count .Values.workers.elastic -}}
{{- fail "workers.succeededCount is for a Job: leave it out with workers.elastic: true" -}}
{{- end -}}
{{- if .Values.workers.minAvailable -}}
{{- if ge (int .Values.workers.minAvailable) (int .Values.workers.replicas) -}}
{{- fail "workers.minAvailable: nodes could never be drained: give fewer than workers.replicas" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The end of every pod: who runs it, and where. */}}
{{- define "gemps.pod" -}}
automountServiceAccountToken: false
# Variables of a Service named gemps would look like settings.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  {{- with .root.Values.user }}
  runAsUser: {{ int64 . }}
  {{- end }}
  {{- with .root.Values.group }}
  runAsGroup: {{ int64 . }}
  fsGroup: {{ int64 . }}
  fsGroupChangePolicy: OnRootMismatch
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
terminationGracePeriodSeconds: {{ .values.terminationGracePeriodSeconds }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- if .values.topologySpreadConstraints }}
{{- $own := dict "labelSelector" (dict "matchLabels" (include "gemps.selector" . | fromYaml)) }}
topologySpreadConstraints:
  {{- range .values.topologySpreadConstraints }}
  - {{ merge (deepCopy .) $own | toJson }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "gemps.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}
