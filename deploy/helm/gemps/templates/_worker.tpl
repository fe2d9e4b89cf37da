{{- define "gemps.worker.job" -}}
completionMode: Indexed
completions: {{ .Values.workers.replicas }}
parallelism: {{ .Values.workers.replicas }}
backoffLimitPerIndex: {{ .Values.workers.retries }}
{{- with .Values.workers.succeededCount }}
successPolicy:
  rules:
    - succeededCount: {{ . }}
{{- end }}
podFailurePolicy:
  rules:
    # Wrong settings or credentials, or the finished run of others: another attempt would fail, too.
    - action: FailJob
      onExitCodes: {containerName: worker, operator: In, values: [2, 4]}
    # Evictions are no failures.
    - action: Ignore
      onPodConditions: [{type: DisruptionTarget, status: "True"}]
template: {{- include "gemps.worker.pod" . | nindent 2 }}
{{- end -}}

{{- define "gemps.worker.pod" -}}
{{- $worker := dict "root" . "component" "worker" "values" .Values.workers -}}
{{- $secret := include "gemps.secret" (dict "root" . "role" "worker") -}}
{{- $resources := deepCopy .Values.workers.resources -}}
{{- if .Values.workers.gpus -}}
{{- $gpus := dict "limits" (dict .Values.workers.gpuResource .Values.workers.gpus) -}}
{{- $resources = mergeOverwrite $resources $gpus -}}
{{- end -}}
metadata:
  labels: {{- include "gemps.selector" $worker | nindent 4 }}
  annotations:
    checksum/settings: {{ include "gemps.worker.variables" . | sha256sum }}
    {{- if not .Values.workers.elastic }}
    checksum/run: {{ include "gemps.server.variables" . | sha256sum }}
    {{- end }}
spec:
  {{- include "gemps.pod" $worker | nindent 2 }}
  restartPolicy: {{ ternary "Always" "Never" .Values.workers.elastic }}
  containers:
    - name: worker
      image: {{ .Values.workers.image }}
      imagePullPolicy: {{ .Values.imagePullPolicy }}
      {{- with .Values.workers.command }}
      args: {{ toJson . }}
      {{- end }}
      envFrom:
        - configMapRef: {name: {{ include "gemps.fullname" . }}-worker}
        {{- range .Values.workers.envFrom }}
        - {{ toJson . }}
        {{- end }}
      env:
        # A name that stays makes the rank stay.
        {{- if .Values.workers.elastic }}
        - name: GEMPS_WORKER_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        {{- else }}
        - name: JOB_COMPLETION_INDEX
          valueFrom: {fieldRef: {fieldPath: "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
        - name: GEMPS_WORKER_NAME
          value: {{ include "gemps.fullname" . }}-worker-$(JOB_COMPLETION_INDEX)
        {{- end }}
        # HOME and USER: for images in which the user has no name.
        {{- range $variable, $value := merge (dict) .Values.workers.env (dict "HOME" "/var/cache/gemps" "USER" "gemps") }}
        - {name: {{ $variable }}, value: {{ $value | quote }}}
        {{- end }}
      resources: {{ toJson $resources }}
      {{- include "gemps.container" . | nindent 6 }}
      volumeMounts:
        - name: datasets
          mountPath: /datasets
          readOnly: {{ .Values.workers.datasets.readOnly }}
        - {name: cache, mountPath: /var/cache/gemps}
        - {name: tmp, mountPath: /tmp}
        - {name: shm, mountPath: /dev/shm}
        {{- if $secret }}
        - {name: credentials, mountPath: /etc/gemps/credentials, readOnly: true}
        {{- end }}
        {{- range .Values.workers.volumeMounts }}
        - {{ toJson . }}
        {{- end }}
  volumes:
    {{- with .Values.workers.datasets.existingClaim }}
    - {name: datasets, persistentVolumeClaim: {claimName: {{ . }}}}
    {{- else }}
    - {name: datasets, emptyDir: {}}
    {{- end }}
    - {name: cache, emptyDir: {}}
    - {name: tmp, emptyDir: {}}
    - {name: shm, emptyDir: {medium: Memory, sizeLimit: {{ .Values.workers.sharedMemory }}}}
    {{- if $secret }}
    - {name: credentials, secret: {secretName: {{ $secret }}, defaultMode: 0440}}
    {{- end }}
    {{- range .Values.workers.volumes }}
    - {{ toJson . }}
    {{- end }}
{{- end -}}
