"""The manifests are those of Kubernetes 1.34, and no pod of them has more rights than it needs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import go_programs
import pytest
import yaml
from go_programs import needs_go

from treaty_registry.cli.serving import serve
from treaty_registry.cli.variables import check_variables

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
SCHEMAS = Path(__file__).parent / "schemas" / "kubernetes"

pytestmark = needs_go("kustomize and kubeconform on the manifests")


@pytest.fixture(scope="module")
def programs(request: pytest.FixtureRequest) -> Path:
    return go_programs.build("kubernetes", request.config.cache.mkdir("go"))


@pytest.fixture(scope="module")
def manifests(programs: Path) -> str:
    return subprocess.run([programs / "kustomize", "build", FOLDER], check=True, capture_output=True, text=True).stdout


def conforms(programs: Path, manifests: str) -> subprocess.CompletedProcess[str]:
    where = f"{SCHEMAS}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
    command = [str(programs / "kubeconform"), "-strict", "-summary", "-schema-location", where, "-"]
    return subprocess.run(command, input=manifests, capture_output=True, text=True, check=False)


def test_they_fit_the_schemas(programs: Path, manifests: str) -> None:
    found = conforms(programs, manifests)
    assert found.returncode == 0 and "Errors: 0, Skipped: 0" in found.stdout, found.stdout
    assert conforms(programs, manifests.replace("replicas:", "replica:")).returncode == 1


def pods(manifests: str) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for item in yaml.safe_load_all(manifests):
        spec = item.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if "template" in spec:
            found.append((item["metadata"]["name"], spec["template"]["spec"]))
    return found


def test_every_pod_is_confined(manifests: str) -> None:
    found = pods(manifests)
    assert [name for name, _ in found] == ["registry", "witness", "backup"]
    for name, pod in found:
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 65532, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"], name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert "memory" in container["resources"]["limits"], name
            assert container["image"].startswith("registry.example/treaty-registry:"), name


def test_one_registry_writes_and_its_keys_stay(manifests: str) -> None:
    (registry,) = (
        item for item in yaml.safe_load_all(manifests) if (item["kind"], item["metadata"]["name"]) == ("StatefulSet", "registry")
    )
    assert registry["spec"]["replicas"] == 1
    assert set(registry["spec"]["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}


def test_every_setting_is_one(manifests: str) -> None:
    for item in yaml.safe_load_all(manifests):
        check_variables({**item.get("data", {}), **item.get("stringData", {})}, serve)


def test_metrics_are_open_to_monitoring_alone(manifests: str) -> None:
    items = list(yaml.safe_load_all(manifests))
    ports = {port["targetPort"] for item in items if item["kind"] == "Service" for port in item["spec"]["ports"]}
    assert ports == {"http"}
    rules = [rule for item in items if item["kind"] == "NetworkPolicy" for rule in item["spec"].get("ingress", ())]
    opened = [rule["from"] for rule in rules if {"port": "metrics"} in rule["ports"]]
    assert opened == [[{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]]
