{{/* Prefix of object names; the longest name ends with "-nats-cluster". */}}
{{- define "pointsman.fullname" -}}
{{- default .Release.Name .Values.nameOverride | trunc 45 | trimSuffix "-" -}}
{{- end }}

{{/* Selector labels: (list root component). NATS has another name, so that selectors of the tiers don't match it. */}}
{{- define "pointsman.selector" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
app.kubernetes.io/name: {{ ternary "nats" "pointsman" (eq $component "nats") }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- if and $component (ne $component "nats") }}
app.kubernetes.io/component: {{ $component }}
{{- end }}
{{- end }}

{{/* Labels of a pod: (list root component). */}}
{{- define "pointsman.podLabels" -}}
{{ include "pointsman.selector" . }}
{{- if eq (index . 1) "nats" }}
app.kubernetes.io/component: nats
{{- end }}
app.kubernetes.io/part-of: pointsman
{{- end }}

{{/* Labels of an object: (list root component). */}}
{{- define "pointsman.labels" -}}
{{ include "pointsman.podLabels" . }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version }}
{{- end }}

{{/* URL of NATS. */}}
{{- define "pointsman.natsUrl" -}}
{{- if .Values.nats.enabled -}}
nats://{{ include "pointsman.fullname" . }}-nats:4222
{{- else -}}
{{ required "nats.url: required when nats.enabled is false" .Values.nats.url }}
{{- end -}}
{{- end }}

{{/* Secret with the tiers' passwords for NATS; empty: no login. */}}
{{- define "pointsman.loginsSecret" -}}
{{- if .Values.nats.loginsSecret -}}
{{ .Values.nats.loginsSecret }}
{{- else if .Values.nats.enabled -}}
{{ include "pointsman.fullname" . }}-nats-logins
{{- end -}}
{{- end }}

{{/* Whether consoles may have endpoints drained; empty: no. */}}
{{- define "pointsman.actions" -}}
{{- if and .Values.console.enabled .Values.console.allowActions -}}
true
{{- end -}}
{{- end }}

{{/* Common fields of all pods: (list root component). */}}
{{- define "pointsman.podSpec" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
serviceAccountName: {{ include "pointsman.fullname" $root }}-{{ $component }}
enableServiceLinks: false
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  {{- if eq $component "nats" }}
  fsGroup: 65532
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
topologySpreadConstraints:
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ . }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "pointsman.selector" (list $root $component) | nindent 6 }}
{{- end }}
{{- end }}

{{/* Common fields of all containers. */}}
{{- define "pointsman.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Pod of a tier: (list root component values flags). */}}
{{- define "pointsman.tier" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $values := index . 2 -}}
{{- $flags := index . 3 -}}
{{- $nats := $root.Values.nats -}}
{{- $reader := ternary "operator" "reader" (not (empty (include "pointsman.actions" $root))) -}}
{{- $login := ternary $reader $component (eq $component "console") -}}
{{- $certificate := and (eq $component "picker") $values.certificateSecret -}}
{{- $ca := and (not $nats.enabled) $nats.caSecret -}}
metadata:
  labels:
    {{- include "pointsman.podLabels" (list $root $component) | nindent 4 }}
  {{- with $root.Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "pointsman.podSpec" (list $root $component) | nindent 2 }}
  automountServiceAccountToken: {{ eq $component "watcher" }}
  terminationGracePeriodSeconds: {{ eq $component "picker" | ternary (add ($values.preStopSleep | default 0) ($values.drainTimeout | default 0) 20) 45 }}
  containers:
  - name: {{ $component }}
    image: {{ $root.Values.image.repository }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    args:
    - {{ $component }}
    - --nats-url={{ include "pointsman.natsUrl" $root }}
    {{- if ne $nats.prefix "pointsman" }}
    - --nats-prefix={{ $nats.prefix }}
    {{- end }}
    {{- if $ca }}
    - --nats-ca=/etc/pointsman/nats/ca.crt
    {{- end }}
    - --pool-name={{ $root.Values.pool.name }}
    {{- range concat $flags $values.extraArgs }}
    - {{ . | quote }}
    {{- end }}
    env:
    - name: POINTSMAN_POOL_NAMESPACE
      valueFrom:
        fieldRef:
          fieldPath: metadata.namespace
    {{- with include "pointsman.loginsSecret" $root }}
    - name: POINTSMAN_NATS_USER
      value: {{ $login }}
    - name: POINTSMAN_NATS_PASSWORD
      valueFrom:
        secretKeyRef:
          name: {{ . }}
          key: {{ $login }}
    {{- end }}
    {{- with $values.tokenSecret }}
    - name: POINTSMAN_CONSOLE_TOKEN
      valueFrom:
        secretKeyRef:
          name: {{ . }}
          key: token
    {{- end }}
    {{- if ($values.tracing | default dict).enabled }}
    - name: OTEL_EXPORTER_OTLP_ENDPOINT
      value: {{ $values.tracing.endpoint }}
    {{- end }}
    {{- with $values.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    ports:
    {{- if eq $component "picker" }}
    - name: ext-proc
      containerPort: 9002
    - name: grpc-health
      containerPort: 9003
    {{- else if eq $component "console" }}
    - name: console
      containerPort: 8090
    {{- end }}
    - name: admin
      containerPort: 9090
    startupProbe:
      httpGet:
        path: /healthz
        port: admin
      periodSeconds: 1
      timeoutSeconds: 5
      failureThreshold: 120
    livenessProbe:
      httpGet:
        path: /healthz
        port: admin
      periodSeconds: 10
      timeoutSeconds: 5
    readinessProbe:
      httpGet:
        path: /readyz
        port: admin
      periodSeconds: 2
      timeoutSeconds: 2
    {{- if and (eq $component "picker") $values.preStopSleep }}
    lifecycle:
      preStop:
        sleep:
          seconds: {{ $values.preStopSleep }}
    {{- end }}
    resources:
      {{- toYaml $values.resources | nindent 6 }}
    securityContext:
      {{- include "pointsman.securityContext" . | nindent 6 }}
    {{- if or $certificate $ca }}
    volumeMounts:
    {{- if $certificate }}
    - name: certificate
      mountPath: /etc/pointsman/certificate
      readOnly: true
    {{- end }}
    {{- if $ca }}
    - name: nats-ca
      mountPath: /etc/pointsman/nats
      readOnly: true
    {{- end }}
    {{- end }}
  {{- if or $certificate $ca }}
  volumes:
  {{- if $certificate }}
  - name: certificate
    secret:
      secretName: {{ $values.certificateSecret }}
  {{- end }}
  {{- if $ca }}
  - name: nats-ca
    secret:
      secretName: {{ $nats.caSecret }}
      items:
      - key: ca.crt
        path: ca.crt
  {{- end }}
  {{- end }}
{{- end }}

{{/* ServiceAccount and PodDisruptionBudget: (list root component). */}}
{{- define "pointsman.around" -}}
{{- $name := printf "%s-%s" (include "pointsman.fullname" (index . 0)) (index . 1) -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  labels:
    {{- include "pointsman.labels" . | nindent 4 }}
automountServiceAccountToken: false
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  labels:
    {{- include "pointsman.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "pointsman.selector" . | nindent 6 }}
{{- end }}

{{/* Deployment of a tier: (list root component values flags). */}}
{{- define "pointsman.deployment" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $values := index . 2 -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "pointsman.fullname" $root }}-{{ $component }}
  labels:
    {{- include "pointsman.labels" (list $root $component) | nindent 4 }}
spec:
  {{- if not (and (hasKey $values "autoscaling") ($values.autoscaling | default dict).enabled) }}
  replicas: {{ $values.replicas }}
  {{- end }}
  strategy:
    rollingUpdate:
      maxSurge: 1
      maxUnavailable: 0
  selector:
    matchLabels:
      {{- include "pointsman.selector" (list $root $component) | nindent 6 }}
  template:
    {{- include "pointsman.tier" . | nindent 4 }}
{{- end }}

{{/* HorizontalPodAutoscaler of a tier: (list root component autoscaling metric target). */}}
{{- define "pointsman.autoscaler" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $scaling := index . 2 -}}
{{- $metric := index . 3 -}}
{{- $target := index . 4 -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ include "pointsman.fullname" $root }}-{{ $component }}
  labels:
    {{- include "pointsman.labels" (list $root $component) | nindent 4 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {{ include "pointsman.fullname" $root }}-{{ $component }}
  minReplicas: {{ $scaling.minReplicas }}
  maxReplicas: {{ $scaling.maxReplicas }}
  metrics:
  - type: Resource
    resource:
      name: cpu
      target:
        type: Utilization
        averageUtilization: {{ $scaling.cpu }}
  {{- if $target }}
  - type: Pods
    pods:
      metric:
        name: {{ $metric }}
      target:
        type: AverageValue
        averageValue: {{ $target | quote }}
  {{- end }}
  behavior:
    scaleDown:
      stabilizationWindowSeconds: 300
{{- end }}

{{/* Configuration of nats-server. */}}
{{- define "pointsman.natsConf" -}}
{{- $name := printf "%s-nats" (include "pointsman.fullname" .) -}}
server_name: $POD_NAME
port: 4222
http_port: 8222
pid_file: "/run/nats/nats.pid"
# A stopping server announces it, and disconnects its clients one after the other.
lame_duck_grace_period: 5s
lame_duck_duration: 30s
# Each tier publishes only what is its own.
{{- $prefix := .Values.nats.prefix }}
{{- $lead := ternary "" (printf "%s_" $prefix) (eq $prefix "pointsman") }}
{{ .Files.Get "files/accounts.conf" | replace "PREFIX_" $lead | replace "PREFIX." (printf "%s." $prefix) | trim }}
jetstream {
  store_dir: "/data"
  # Attributes and leases are in memory storage, facts in file storage.
  max_memory_store: {{ .Values.nats.memoryStore }}
  max_file_store: {{ .Values.nats.fileStore }}
}
{{- if gt (int .Values.nats.replicas) 1 }}
cluster {
  name: {{ $name }}
  port: 6222
  # A server that joins can publish as every user of every account.
  authorization { user: cluster, password: $CLUSTER_PASSWORD }
  routes: $CLUSTER_ROUTES
}
{{- end }}
{{- end }}

{{/* Environment of nats-server: passwords, and routes between several servers. */}}
{{- define "pointsman.natsEnv" -}}
{{- $name := printf "%s-nats" (include "pointsman.fullname" .) -}}
{{- $replicas := int .Values.nats.replicas -}}
{{- range concat (list "watcher" "collector" "picker" "reader" "operator") (ternary (list "cluster") list (gt $replicas 1)) }}
- name: {{ upper . }}_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ include "pointsman.loginsSecret" $ }}
      key: {{ . }}
{{- end }}
{{- if gt $replicas 1 }}
{{- $routes := list }}
{{- range until $replicas }}
{{- $routes = append $routes (printf "nats://cluster:$(CLUSTER_PASSWORD)@%s-%d.%s-cluster:6222" $name . $name) }}
{{- end }}
- name: CLUSTER_ROUTES
  value: {{ printf "[%s]" (join ", " $routes) | quote }}
{{- end }}
{{- end }}

{{/* DNS, in a pod or on the node. */}}
{{- define "pointsman.dns" -}}
- ports:
  - protocol: UDP
    port: 53
  - protocol: TCP
    port: 53
{{- end }}

{{/* The watcher's permissions in the namespace of a pool. */}}
{{- define "pointsman.rules" -}}
# The model servers.
{{- if .Values.watcher.endpointSlices }}
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
{{- else }}
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
{{- end }}
{{- if include "pointsman.actions" . }}
# Draining from a console.
- apiGroups: [""]
  resources: [pods]
  verbs: [patch]
{{- end }}
{{- if not .Values.pool.standalone }}
# The pool and the resources that refer to it, in all groups that may be installed.
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  verbs: [list, watch]
- apiGroups: [inference.networking.x-k8s.io]
  resources: [inferencepools, inferenceobjectives, inferencemodelrewrites, inferencemodels]
  verbs: [list, watch]
- apiGroups: [llm-d.ai]
  resources: [inferenceobjectives, inferencemodelrewrites]
  verbs: [list, watch]
# Conditions, by server-side apply. Those of a pool belong to its Gateways.
- apiGroups: [inference.networking.x-k8s.io]
  resources: [inferenceobjectives/status, inferencemodelrewrites/status, inferencemodels/status]
  verbs: [patch]
- apiGroups: [llm-d.ai]
  resources: [inferenceobjectives/status, inferencemodelrewrites/status]
  verbs: [patch]
{{- end }}
# Errors in resources.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- with .Values.watcher.extraRules }}
{{ toYaml . }}
{{- end }}
{{- end }}
