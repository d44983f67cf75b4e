"""The manifests are those of Kubernetes 1.34, for one registry and for several nodes. No pod has more rights than it needs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import go_programs
import pytest
import yaml
from go_programs import needs_go

from treaty_registry.cli.variables import check_variables
from treaty_registry.keys import create_operator, load_operator

DEPLOY = Path(__file__).parents[2] / "deploy"
SCHEMAS = Path(__file__).parent / "schemas" / "kubernetes"

pytestmark = [pytest.mark.deep, needs_go("kustomize and kubeconform on the manifests")]


@pytest.fixture(scope="module")
def programs(request: pytest.FixtureRequest) -> Path:
    return go_programs.build("kubernetes", request.config.cache.mkdir("go"))


@pytest.fixture(scope="module")
def built(programs: Path) -> dict[str, str]:
    def build(name: str) -> str:
        return subprocess.run([programs / "kustomize", "build", DEPLOY / name], check=True, capture_output=True, text=True).stdout

    return {name: build(name) for name in ("kubernetes", "kubernetes-nodes")}


@pytest.fixture(params=["kubernetes", "kubernetes-nodes"])
def manifests(request: pytest.FixtureRequest, built: dict[str, str]) -> str:
    return built[request.param]


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
    check_confined(found)


def check_confined(found: list[tuple[str, dict[str, Any]]]) -> None:
    for name, pod in found:
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 65532, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"], name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert "memory" in container["resources"]["limits"], name
            assert container["image"].startswith("registry.example/treaty-registry:"), name


def test_the_job_that_makes_the_log_is_confined_and_no_part_of_apply(programs: Path, built: dict[str, str]) -> None:
    text = (DEPLOY / "kubernetes" / "init.yaml").read_text()
    job = yaml.safe_load(text)
    check_confined(pods(text))
    pod = job["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"] == ["init"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "data-registry-0"
    assert "kind: Job\n" not in built["kubernetes"]
    # The schema of a CronJob has that of a job in it.
    spec = {"schedule": "@yearly", "jobTemplate": {"spec": job["spec"]}}
    found = conforms(programs, yaml.safe_dump({**job, "kind": "CronJob", "spec": spec}))
    assert found.returncode == 0 and "Errors: 0, Skipped: 0" in found.stdout, found.stdout


def registry_of(manifests: str) -> dict[str, Any]:
    items = yaml.safe_load_all(manifests)
    (found,) = (item for item in items if (item["kind"], item["metadata"]["name"]) == ("StatefulSet", "registry"))
    return dict(found["spec"])


def test_one_registry_writes_and_its_keys_stay(built: dict[str, str]) -> None:
    registry = registry_of(built["kubernetes"])
    assert registry["replicas"] == 1
    assert set(registry["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}


def test_several_nodes_share_all_but_their_keys_which_are_secrets(built: dict[str, str], tmp_path: Path) -> None:
    registry = registry_of(built["kubernetes-nodes"])
    pod = registry["template"]["spec"]
    assert registry["replicas"] > 1 and "volumeClaimTemplates" not in registry
    assert {"name": "TREATY_NODE_URL", "value": "http://$(POD_IP):8080"} in pod["containers"][0]["env"]
    shared = "".join(
        text for text in built["kubernetes-nodes"].split("---") if "kind: ConfigMap" in text or "kind: Secret" in text
    )
    assert all(f"{name}: " in shared for name in ("TREATY_DATABASE_URL", "TREATY_BLOBS_URL", "TREATY_HEAD_URL"))

    made = create_operator(tmp_path / "made", "registry.example")
    # As a mounted secret is: its group can read it.
    for name, folder in {"keys": tmp_path / "made", "authority": tmp_path / "made" / "authority"}.items():
        (tmp_path / name).mkdir()
        for path in folder.iterdir():
            if path.is_file():
                shutil.copy(path, tmp_path / name)
                (tmp_path / name / path.name).chmod(0o440)
    *_, script = pod["initContainers"][0]["command"]
    here = re.sub(r"(?<= )/(?=data|keys|authority|next)", f"{tmp_path}/", script)
    for _ in range(2):  # a pod may run it again
        subprocess.run(["sh", "-ec", here], check=True)
        assert load_operator(tmp_path / "data" / "keys").log_key == made.log_key
        shutil.copytree(tmp_path / "keys", tmp_path / "next", dirs_exist_ok=True)
    assert (tmp_path / "data" / "keys" / "next" / "log.key").stat().st_mode & 0o077 == 0


def test_every_setting_is_one(manifests: str) -> None:
    for item in yaml.safe_load_all(manifests):
        check_variables({**item.get("data", {}), **item.get("stringData", {})})


def test_metrics_are_open_to_monitoring_alone(manifests: str) -> None:
    items = list(yaml.safe_load_all(manifests))
    ports = {port["targetPort"] for item in items if item["kind"] == "Service" for port in item["spec"]["ports"]}
    assert ports == {"http"}
    rules = [rule for item in items if item["kind"] == "NetworkPolicy" for rule in item["spec"].get("ingress", ())]
    opened = [rule["from"] for rule in rules if {"port": "metrics"} in rule["ports"]]
    assert opened == [[{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]]
