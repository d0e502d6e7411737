{{/* The prefix of all names. */}}
{{- define "qa.name" -}}
{{- printf "%s-%s" .Release.Name "qa-cluster" | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* The labels of all objects. */}}
{{- define "qa.labels" -}}
{{ include "qa.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "qa.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The URL scheme of the service. */}}
{{- define "qa.scheme" -}}
{{ if .Values.service.tls.existingSecret }}HTTPS{{ else }}HTTP{{ end }}
{{- end -}}

{{- define "qa.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end -}}

{{- define "qa.secret" -}}
{{ .Values.auth.existingSecret | default (include "qa.name" .) }}
{{- end -}}

{{/* The addresses of all servers for `qa-cluster up --form`. The primaries come first. */}}
{{- define "qa.url" -}}
{{- $name := include "qa.name" . -}}
{{- $servers := list -}}
{{- range $member := until (int (add1 .Values.shards.replicas)) -}}
{{- range $shard := until (int $.Values.shards.count) -}}
{{- $servers = append $servers (printf "%s-shard-%d-%d.%s-shards:7000" $name $shard $member $name) -}}
{{- end -}}
{{- end -}}
{{ if .Values.shards.tls.existingSecret }}rediss{{ else }}redis{{ end }}://{{ join "," $servers }}
{{- end -}}

{{/* Settings of every container. */}}
{{- define "qa.environment" -}}
- name: QA_CLUSTER_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "qa.secret" . }}, key: password}}
- {name: QA_CLUSTER_URL, value: {{ include "qa.url" . | quote }}}
- {name: QA_SHARDS, value: {{ .Values.shards.count | quote }}}
- {name: QA_REPLICAS, value: {{ .Values.shards.replicas | quote }}}
{{- if .Values.shards.tls.existingSecret }}
- {name: QA_CLUSTER_TLS_CA, value: /cluster-tls/ca.crt}
- {name: QA_CLUSTER_TLS_CERT, value: /cluster-tls/tls.crt}
- {name: QA_CLUSTER_TLS_KEY, value: /cluster-tls/tls.key}
- {name: QA_CLUSTER_TLS_CHECK_HOST, value: "false"}
{{- end }}
{{- end -}}

{{/* Settings of the servers and of their setup. */}}
{{- define "qa.serverEnvironment" -}}
{{ include "qa.environment" . }}
- name: QA_REPLICATION_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "qa.secret" . }}, key: replication-password, optional: true}}
{{- end -}}

{{/* The certificate of servers and their clients. Only the group of the container's user can read the key. */}}
{{- define "qa.clusterTlsMount" -}}
{{- if .Values.shards.tls.existingSecret }}
- {name: cluster-tls, mountPath: /cluster-tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "qa.clusterTlsVolume" -}}
{{- with .Values.shards.tls.existingSecret }}
- {name: cluster-tls, secret: {secretName: {{ . }}, defaultMode: 0440}}
{{- end }}
{{- end -}}

{{- define "qa.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "qa.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "qa.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}
