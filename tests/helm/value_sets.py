"""Values of the chart, as users give them."""

from typing import Any

TLS: dict[str, Any] = {
    "credentials": {"server": {"existingSecret": "gemps-server"}, "worker": {"existingSecret": "gemps-worker"}}
}
SHARDS: dict[str, Any] = {
    "credentials": TLS["credentials"] | {"operator": {"existingSecret": "gemps-operator"}},
    "server": {"shards": 2},
}
TRUSTED: dict[str, Any] = {"insecure": True}
ON_EACH_NODE = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
LARGE = 123_456_789_012

VALUE_SETS: dict[str, dict[str, Any]] = {
    "trusted": TRUSTED,
    "tls": TLS,
    "tls-in-values": {
        "credentials": {
            "server": {"files": {"server.crt": "A\n", "server.key": "B\n", "ca.crt": "C\n", "tokens": "worker D\n"}},
            "worker": {"files": {"ca.crt": "C\n", "client.crt": "E\n", "client.key": "F\n", "token": "D\n"}},
        }
    },
    "elastic": TLS | {"workers": {"elastic": True, "replicas": 8}},
    "elastic-observed": TLS
    | {
        "workers": {"elastic": True, "minAvailable": 2},
        "dashboard": {"service": True, "hosts": ["run.example.org"]},
    },
    "gpus": TLS
    | {
        "workers": {
            "gpus": 1,
            "nodeSelector": {"nvidia.com/gpu.product": "H100"},
            "tolerations": [TAINT],
            "topologySpreadConstraints": [ON_EACH_NODE],
            "resources": {"requests": {"cpu": 4, "memory": "32Gi"}, "limits": {"memory": "32Gi"}},
        },
        "server": {"nodeSelector": {"disk": "fast"}, "topologySpreadConstraints": [ON_EACH_NODE]},
    },
    "other-gpus": TRUSTED | {"workers": {"gpus": 2, "gpuResource": "amd.com/gpu", "elastic": True}},
    "own-script": TLS
    | {
        "imagePullSecrets": [{"name": "registry"}],
        "imagePullPolicy": "Always",
        "workers": {
            "image": "registry.example.org:5000/team/train:1.2@sha256:0123abcd",
            "command": ["python", "/script/train.py", "--rate=0.1"],
            "env": {"OMP_NUM_THREADS": 4, "WANDB_MODE": "offline", "HOME": "/tmp"},
            "envFrom": [{"secretRef": {"name": "wandb"}}],
            "volumes": [{"name": "script", "configMap": {"name": "script"}}],
            "volumeMounts": [{"name": "script", "mountPath": "/script"}],
            "datasets": {"existingClaim": "datasets", "readOnly": True},
            "sharedMemory": "8Gi",
        },
    },
    "large-numbers": TRUSTED
    | {
        "server": {
            "settings": {"commits": LARGE, "memory_limit": LARGE, "seed": 7_000_000, "eta": 0.00001, "epochs": 2.5}
        },
        "workers": {"settings": {"batch_size": 1_000_000, "client_connect_timeout": 1_500_000}},
    },
    "without-defaults": TRUSTED
    | {
        "server": {"settings": {"commits": None, "steps": 200, "reflection": False, "rule_settings": "momentum=0.8"}},
        "workers": {"settings": {"task": None}, "env": {"OMP_NUM_THREADS": None}},
    },
    "server-alone": TLS | {"workers": {"replicas": 0}, "server": {"serviceType": "LoadBalancer"}},
    "late-workers": TRUSTED | {"workers": {"replicas": 16, "succeededCount": 12, "retries": 0, "minAvailable": 12}},
    "openshift": TLS | {"user": None, "group": None},
    "shards": SHARDS
    | {
        "server": {"shards": 3, "disruptionBudget": True, "topologySpreadConstraints": [ON_EACH_NODE]},
        "dashboard": {"service": True},
        "networkPolicy": {"enabled": True, "viewers": [{"namespaceSelector": {}}]},
    },
    "shards-in-values": {
        "credentials": {
            "server": {"files": {"server.crt": "A\n", "server.key": "B\n"}},
            "worker": {"files": {"ca.crt": "C\n"}},
            "operator": {"files": {"ca.crt": "C\n", "client.crt": "G\n", "client.key": "H\n", "token": "I\n"}},
        },
        "server": {"shards": 2},
    },
    "trusted-shards": TRUSTED | {"server": {"shards": 2}},
    "storage": TLS | {"server": {"storage": {"size": "200Gi", "className": "fast-ssd"}, "disruptionBudget": True}},
    "watched": TLS
    | {
        "dashboard": {"service": True},
        "metrics": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
            "grafanaDashboard": {"enabled": True},
        },
        "networkPolicy": {"enabled": True, "viewers": [{"namespaceSelector": {}}]},
    },
    "closed": TLS
    | {
        "server": {"serviceType": "LoadBalancer", "serviceAnnotations": {"example.org/internal": "true"}},
        "dashboard": {"enabled": False},
        "networkPolicy": {"enabled": True, "clients": [{"ipBlock": {"cidr": "10.77.0.0/24"}}]},
    },
}
