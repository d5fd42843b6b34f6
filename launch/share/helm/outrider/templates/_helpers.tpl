{{- define "outrider.labels" -}}
app.kubernetes.io/name: outrider
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- define "outrider.pod" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .Values.runAs }}
  runAsGroup: {{ .Values.runAs }}
  fsGroup: {{ .Values.runAs }}
  seccompProfile: {type: RuntimeDefault}
automountServiceAccountToken: false
enableServiceLinks: false   # their variables OUTRIDER_* would be read as flags
nodeSelector: {{ toJson .Values.nodeSelector }}
tolerations: {{ toJson .Values.tolerations }}
{{- end -}}

{{- define "outrider.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end -}}

{{- define "outrider.volumes" -}}
- {name: tmp, emptyDir: {}}
- {{ merge (dict "name" "models") .Values.models.volume | toJson }}
{{- end -}}
