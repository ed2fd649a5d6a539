{{- define "fusee.name" -}}
{{- if contains "fusee" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-fusee" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "fusee.selector" -}}
app.kubernetes.io/name: fusee
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "fusee.labels" -}}
{{ include "fusee.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "fusee.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The addresses of all masters, separated by commas. */}}
{{- define "fusee.masters" -}}
{{- $name := include "fusee.name" . -}}
{{- $all := list -}}
{{- range until (int .Values.master.replicas) -}}
{{- $all = append $all (printf "%s-master-%d.%s-master.%s.svc:7400" $name . $name $.Release.Namespace) -}}
{{- end -}}
{{- join "," $all -}}
{{- end }}

{{- define "fusee.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "fusee.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Lets a Prometheus that looks for these annotations find the metrics, unless its operator does. */}}
{{- define "fusee.scraped" -}}
{{- if not .root.Values.serviceMonitor.enabled -}}
prometheus.io/scrape: "true"
prometheus.io/port: {{ .port | quote }}
prometheus.io/path: /metrics
{{- end -}}
{{- end }}

{{/* Where pods of a component go, and what gives way to them. */}}
{{- define "fusee.scheduling" -}}
{{- $of := .of -}}
nodeSelector: {{- toYaml $of.nodeSelector | nindent 2 }}
tolerations: {{- toYaml $of.tolerations | nindent 2 }}
{{- with $of.priorityClassName }}
priorityClassName: {{ quote . }}
{{- end }}
{{- if $of.topologySpreadConstraints }}
{{- $labels := merge (dict "app.kubernetes.io/component" .component) (include "fusee.selector" .root | fromYaml) }}
{{- $own := dict "labelSelector" (dict "matchLabels" $labels) }}
topologySpreadConstraints:
{{- range $of.topologySpreadConstraints }}
  - {{- merge (dict) . $own | toYaml | nindent 4 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Who may connect: what all processes have to know of it, by environment variables. */}}
{{- define "fusee.access" -}}
{{- if .Values.secret.existingSecret -}}
{{- if .Values.insecure }}{{ fail "secret.existingSecret or insecure, not both" }}{{ end -}}
- {name: FUSEE_SECRET, value: /etc/fusee-secret/secret}
{{- else if .Values.insecure -}}
- {name: FUSEE_INSECURE, value: "true"}
{{- else -}}
{{ fail "set secret.existingSecret, or insecure to true: then whatever reaches the servers may do everything" }}
{{- end -}}
{{- if .Values.tls.existingSecret }}
- {name: FUSEE_TLS_CA, value: /etc/fusee-tls/ca.crt}
{{- end -}}
{{- end }}

{{/* The same, of a server: what shows others where they are. */}}
{{- define "fusee.serverAccess" -}}
{{- include "fusee.access" . -}}
{{- if .Values.tls.existingSecret }}
- {name: FUSEE_TLS_CERT, value: /etc/fusee-tls/tls.crt}
- {name: FUSEE_TLS_KEY, value: /etc/fusee-tls/tls.key}
{{- end -}}
{{- end }}

{{/* Nothing, where there is neither a secret nor TLS. */}}
{{- define "fusee.secretMount" -}}
{{- if .Values.secret.existingSecret }}
- {name: secret, mountPath: /etc/fusee-secret, readOnly: true}
{{- end -}}
{{- if .Values.tls.existingSecret }}
- {name: tls, mountPath: /etc/fusee-tls, readOnly: true}
{{- end -}}
{{- end }}

{{/*
The files are root's. They are their group's as well, which is the pod's by fsGroup: Kubernetes makes them 0440. fusee
refuses what more than the group of another user's file may read. Whoever runs a command needs no server's key.
*/}}
{{- define "fusee.secretVolume" -}}
{{- with .root.Values.secret.existingSecret }}
- name: secret
  secret: {secretName: {{ quote . }}, defaultMode: 0400, items: [{key: secret, path: secret}]}
{{- end -}}
{{- with .root.Values.tls.existingSecret }}
- name: tls
  secret:
    secretName: {{ quote . }}
    defaultMode: 0400
    items:
      - {key: ca.crt, path: ca.crt}
      {{- if $.isServer }}
      - {key: tls.crt, path: tls.crt}
      - {key: tls.key, path: tls.key}
      {{- end }}
{{- end -}}
{{- end }}

{{/* A container that runs one command of fusee against the masters. */}}
{{- define "fusee.command" -}}
image: {{ include "fusee.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args: [{{ .command }}]
env:
  - {name: FUSEE_MASTER, value: {{ include "fusee.masters" .root | quote }}}
  {{- include "fusee.access" .root | nindent 2 }}
volumeMounts: {{- include "fusee.secretMount" .root | default "[]" | nindent 2 }}
securityContext:
  {{- include "fusee.security" .root | nindent 2 }}
resources:
  requests: {cpu: 50m, memory: 64Mi}
  limits: {memory: 256Mi}
{{- end }}
