"""The manifests are those of Kubernetes 1.34, for one registry and for several nodes. No pod has more rights than it needs."""

from __future__ import annotations

import ipaddress
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import go_programs
import pytest
import yaml
from go_programs import needs_go

from treaty_registry.cli.variables import check_variables
from treaty_registry.keys import create_operator, load_operator
from treaty_registry.settings import Settings

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
    report = conforms(programs, manifests)
    assert report.returncode == 0 and "Errors: 0, Skipped: 0" in report.stdout, report.stdout
    assert conforms(programs, manifests.replace("replicas:", "replica:")).returncode == 1


def pods(manifests: str) -> list[tuple[str, dict[str, Any]]]:
    rows = []
    for item in yaml.safe_load_all(manifests):
        spec = item.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if "template" in spec:
            rows.append((item["metadata"]["name"], spec["template"]["spec"]))
    return rows


def test_every_pod_is_confined(manifests: str) -> None:
    rows = pods(manifests)
    assert [name for name, _ in rows] == ["registry", "witness", "backup"]
    check_confined(rows)


def check_confined(rows: list[tuple[str, dict[str, Any]]]) -> None:
    for name, pod in rows:
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 65532, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"], name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert "memory" in container["resources"]["limits"], name
            assert container["image"].startswith("registry.example/treaty-registry:"), name


def test_the_job_that_makes_the_log_is_confined(programs: Path, built: dict[str, str]) -> None:
    text = (DEPLOY / "kubernetes" / "init.yaml").read_text()
    job = yaml.safe_load(text)
    check_confined(pods(text))
    pod = job["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"] == ["init"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "data-registry-0"
    assert "kind: Job\n" not in built["kubernetes"]
    # The schema of a CronJob has that of a job in it.
    spec = {"schedule": "@yearly", "jobTemplate": {"spec": job["spec"]}}
    report = conforms(programs, yaml.safe_dump({**job, "kind": "CronJob", "spec": spec}))
    assert report.returncode == 0 and "Errors: 0, Skipped: 0" in report.stdout, report.stdout


def registry_of(manifests: str) -> dict[str, Any]:
    items = yaml.safe_load_all(manifests)
    (item_of,) = (item for item in items if (item["kind"], item["metadata"]["name"]) == ("StatefulSet", "registry"))
    return dict(item_of["spec"])


def test_one_registry_writes_and_its_keys_stay(built: dict[str, str]) -> None:
    registry = registry_of(built["kubernetes"])
    assert registry["replicas"] == 1
    assert set(registry["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}


def test_nodes_share_all_but_their_keys(built: dict[str, str], tmp_path: Path) -> None:
    registry = registry_of(built["kubernetes-nodes"])
    pod = registry["template"]["spec"]
    assert registry["replicas"] > 1 and "volumeClaimTemplates" not in registry
    shared = "".join(
        text for text in built["kubernetes-nodes"].split("---") if "kind: ConfigMap" in text or "kind: Secret" in text
    )
    assert all(f"{name}: " in shared for name in ("TREATY_DATABASE_URL", "TREATY_BLOBS_URL", "TREATY_HEAD_URL"))

    new_keys = create_operator(tmp_path / "made", "registry.example")
    # As a mounted secret is: its group can read it.
    for name, folder in {"keys": tmp_path / "made", "authority": tmp_path / "made" / "authority"}.items():
        (tmp_path / name).mkdir()
        for path in folder.iterdir():
            if path.is_file():
                shutil.copy(path, tmp_path / name)
                (tmp_path / name / path.name).chmod(0o440)
    *_, script = pod["initContainers"][0]["command"]
    here = re.sub(r'(?<=")/(?=data|keys|authority|next)', f"{tmp_path}/", script)
    for _ in range(2):  # a pod may run it again
        subprocess.run([sys.executable, "-c", here], check=True)
        assert load_operator(tmp_path / "data" / "keys").log_key == new_keys.log_key
        shutil.copytree(tmp_path / "keys", tmp_path / "next", dirs_exist_ok=True)
    assert (tmp_path / "data" / "keys" / "next" / "log.key").stat().st_mode & 0o077 == 0


def test_no_container_needs_a_program_that_the_image_lacks(built: dict[str, str]) -> None:
    for text in built.values():
        used = re.findall(r"image: (\S*treaty-registry\S*)(?:(?!image: ).)*?command:\n\s+- (\S+)", text, re.DOTALL)
        assert {program for _, program in used} <= {"python3", "treaty-registry"}
        assert not re.search(r"\bsh\b", text)


@pytest.mark.parametrize(("address", "url"), [("10.0.0.9", "http://10.0.0.9:8080"), ("fd00::9", "http://[fd00::9]:8080")])
def test_a_node_names_itself_by_either_kind_of_address(built: dict[str, str], tmp_path: Path, address: str, url: str) -> None:
    *_, script = registry_of(built["kubernetes-nodes"])["template"]["spec"]["containers"][0]["command"]
    (tmp_path / "treaty-registry").write_text('#!/bin/sh\necho "$1 $TREATY_NODE_URL"\n')
    (tmp_path / "treaty-registry").chmod(0o755)
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "POD_IP": address}
    done = subprocess.run([sys.executable, "-c", script], env=variables, check=True, capture_output=True, text=True)
    assert done.stdout == f"serve {url}\n"
    node = Settings(tmp_path, node=url, database="postgresql://a@b/c", blobs="s3://b", head="s3://b/head")
    assert node.node == url


def test_a_drain_takes_one_node_at_a_time(built: dict[str, str]) -> None:
    budgets = [item for item in yaml.safe_load_all(built["kubernetes-nodes"]) if item["kind"] == "PodDisruptionBudget"]
    (budget,) = (item["spec"] for item in budgets)
    assert budget["maxUnavailable"] == 1
    assert budget["selector"] == registry_of(built["kubernetes-nodes"])["selector"]
    (spreading,) = registry_of(built["kubernetes-nodes"])["template"]["spec"]["topologySpreadConstraints"]
    assert (spreading["topologyKey"], spreading["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "DoNotSchedule")
    # A budget for one pod would hold every drain up.
    assert "PodDisruptionBudget" not in built["kubernetes"]


def test_a_pod_that_stops_still_answers_for_a_moment(manifests: str) -> None:
    for name, pod in pods(manifests):
        if name != "backup":
            assert pod["containers"][0]["lifecycle"]["preStop"] == {"sleep": {"seconds": 5}}
            assert pod.get("terminationGracePeriodSeconds", 30) >= 5 + 15


def test_every_set_has_a_service_and_every_server_an_entry(manifests: str) -> None:
    items = list(yaml.safe_load_all(manifests))
    services = {item["metadata"]["name"]: item["spec"] for item in items if item["kind"] == "Service"}
    backends = set()
    for item in items:
        if item["kind"] == "StatefulSet":
            assert services[item["spec"]["serviceName"]]["clusterIP"] == "None"
        if item["kind"] == "Ingress":
            backends |= {path["backend"]["service"]["name"] for rule in item["spec"]["rules"] for path in rule["http"]["paths"]}
    assert backends == {"registry", "witness"}
    assert all("clusterIP" not in services[name] for name in backends)
    assert all(service["ipFamilyPolicy"] == "PreferDualStack" for service in services.values())


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a selector takes an object with these labels."""
    named = selector.get("matchLabels", {}).items() <= labels.items()
    return named and all(labels.get(rule["key"]) in rule["values"] for rule in selector.get("matchExpressions", ()))


def reaches(manifests: str, pod: str, peer: dict[str, Any], port: int) -> bool:
    """Whether the policies let a pod of ours connect to a peer: an address, or the labels of a pod of this namespace."""
    policies = [item["spec"] for item in yaml.safe_load_all(manifests) if item["kind"] == "NetworkPolicy"]
    ours = [policy for policy in policies if selects(policy["podSelector"], {"app.kubernetes.io/name": pod})]
    assert any("Egress" in policy["policyTypes"] for policy in ours)
    for rule in (rule for policy in ours for rule in policy.get("egress", ())):
        for to in rule["to"]:
            if "ipBlock" in to:
                at = ipaddress.ip_address(peer.get("address", "127.0.0.1"))
                networks = [ipaddress.ip_network(cidr) for cidr in (to["ipBlock"]["cidr"], *to["ipBlock"]["except"])]
                matches = at in networks[0] and not any(at in network for network in networks[1:])
            else:
                matches = "namespaceSelector" not in to and "labels" in peer and selects(to["podSelector"], peer["labels"])
            if matches and port in [{"http": 8080}.get(part["port"], part["port"]) for part in rule["ports"]]:
                return True
    return False


def test_pods_reach_what_they_need_and_nothing_else(built: dict[str, str]) -> None:
    one, nodes = built["kubernetes"], built["kubernetes-nodes"]
    database, store = {"labels": {"cnpg.io/cluster": "postgres"}}, {"address": "198.51.100.7"}
    for manifests in (one, nodes):
        for name in ("registry", "backup", "init"):
            assert reaches(manifests, name, database, 5432)
            assert reaches(manifests, name, store, 443) and reaches(manifests, name, {"address": "2001:db8::7"}, 443)
            assert not reaches(manifests, name, store, 80)
            assert not any(reaches(manifests, name, {"address": at}, 443) for at in ("10.1.2.3", "169.254.169.254", "fd00::1"))
        assert not reaches(manifests, "witness", database, 5432) and not reaches(manifests, "witness", store, 443)
    other = {"labels": {"app.kubernetes.io/name": "registry"}}
    assert reaches(nodes, "registry", other, 8080) and not reaches(one, "registry", other, 8080)
    # The pods of PostgreSQL and of its operator are not ours to close.
    policies = [item["spec"] for item in yaml.safe_load_all(one) if item["kind"] == "NetworkPolicy"]
    assert not any(selects(policy["podSelector"], database["labels"]) for policy in policies)


def test_every_setting_is_one(manifests: str) -> None:
    for item in yaml.safe_load_all(manifests):
        check_variables({**item.get("data", {}), **item.get("stringData", {})})


def test_the_words_of_the_witness_have_values(manifests: str) -> None:
    (values,) = (
        item["data"] for item in yaml.safe_load_all(manifests) if item["metadata"]["name"] == "witness" and "data" in item
    )
    (pod,) = (pod for name, pod in pods(manifests) if name == "witness")
    assert set(re.findall(r"\$\((\w+)\)", " ".join(pod["containers"][0]["args"]))) == values.keys()


def test_metrics_are_open_to_monitoring_alone(manifests: str) -> None:
    items = list(yaml.safe_load_all(manifests))
    ports = {port["targetPort"] for item in items if item["kind"] == "Service" for port in item["spec"]["ports"]}
    assert ports == {"http"}
    rules = [rule for item in items if item["kind"] == "NetworkPolicy" for rule in item["spec"].get("ingress", ())]
    opened = [rule["from"] for rule in rules if {"port": "metrics"} in rule["ports"]]
    assert opened == [[{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]]
