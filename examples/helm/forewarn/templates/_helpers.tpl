{{- define "forewarn.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "forewarn.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The port of an address such as 127.0.0.1:8169. */}}
{{- define "forewarn.port" -}}
{{ regexFind "[0-9]+$" . }}
{{- end }}

{{- define "forewarn.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
# Gives it the secrets, and what it may write to.
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "forewarn.containerSecurity" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
