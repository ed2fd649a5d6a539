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

{{/* A container that runs one command of fusee against the masters. */}}
{{- define "fusee.command" -}}
image: {{ include "fusee.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args: [{{ .command }}]
env:
  - {name: FUSEE_MASTER, value: {{ include "fusee.masters" .root | quote }}}
securityContext:
  {{- include "fusee.security" .root | nindent 2 }}
resources:
  requests: {cpu: 50m, memory: 64Mi}
  limits: {memory: 256Mi}
{{- end }}
