"""Commands of docs/kubernetes.md and of the chart's notes: helm and kubectl take them, and what they name exists."""

import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from gem_cli.certificates import names_of
from gem_server.security.shard_credentials import read_shard_credentials

from tests.docs import command_line
from tests.docs.blocks import blocks_of
from tests.docs.shell import simple_commands

from .chart import NAMESPACE, ROOT, VERSIONS, Helm, Rendered, pod_of, pods_of, selects
from .pods import address
from .value_sets import VALUE_SETS

PAGE = ROOT / "docs" / "kubernetes.md"
LINES = [shlex.split(command.text.replace("REGISTRY", "registry.example.org").replace("\\\n", " "))
         for block in blocks_of(PAGE) for command in block.commands if block.shell]  # fmt: skip
VERBS = {"delete", "exec", "get", "logs", "port-forward", "scale", "uninstall", "wait"}
NO_CLUSTER = ("was refused", "cluster unreachable", "connection refused")


def of_page(program: str) -> list[list[str]]:
    return [words for words in LINES if words[0] == program]


def values_of(words: list[str]) -> list[str]:
    """--set and its like, of a line that installs or upgrades."""
    return [one for before, word in pairwise(words) if before == "--set" for one in (before, word)]


@pytest.fixture(scope="module")
def installed(helm: Helm) -> Rendered:
    """What the page's first block installs."""
    line = next(words for words in of_page("helm") if words[1] == "install")
    text = helm.checked("template", line[2], line[3], *values_of(line))
    return helm.read(text, VERSIONS)


def names(words: list[str], rendered: Rendered) -> None:
    """Fail unless what a kubectl line names is rendered, or made by a StatefulSet that is."""
    pods = {pod["metadata"]["name"] for pod in pods_of(rendered.server)}
    claims = {f"{one['metadata']['name']}-{pod}" for one in rendered.server["spec"]["volumeClaimTemplates"]
              for pod in pods}  # fmt: skip
    verb = words[3] if words[1] == "-n" else words[1]
    known = {"exec": pods, "port-forward": pods, "pvc": claims}
    for before, word in pairwise(words):
        assert before not in known or word in known[before], words
    assert verb in VERBS, verb
    if "-l" in words:
        labels = dict(one.split("=") for one in words[words.index("-l") + 1].split(","))
        workloads = [rendered.workers] if "job" in words else [pod_of(rendered.workers)]
        assert any(selects(labels, one) for one in workloads), words
    if "deployment" in words:
        assert rendered.workers["kind"] == "Deployment"
        assert words[words.index("deployment") + 1] == rendered.workers["metadata"]["name"]


def test_a_first_run_takes_at_most_ten_commands() -> None:
    first = next(block for block in blocks_of(PAGE) if block.shell)
    assert len(first.commands) <= 10


def test_what_the_page_installs_is_valid_and_runs_the_images_that_it_builds(installed: Rendered) -> None:
    assert installed.wrong == []
    (build,) = [words for words in LINES if "docker" in words]
    images = dict(word.split("=") for word in build if "_IMAGE=" in word)
    for role, workload in (("SERVER", installed.server), ("WORKER", installed.workers)):
        assert pod_of(workload)["spec"]["containers"][0]["image"] == images[f"{role}_IMAGE"]


def test_secrets_of_the_page_are_those_that_the_pods_mount(helm: Helm, installed: Rendered, tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    line = next(iter(of_page("gemps")))
    subprocess.run([sys.executable, "-m", "gem_cli", *line[1:]], cwd=tmp_path, check=True)
    assert installed.one("Service")["metadata"]["name"] in line, "the certificate is for the Service"
    made = {}
    for words in of_page("kubectl"):
        if words[1] == "create" and "gemps-operator" not in words:
            given = [word.replace("=certs", f"={certs}") for word in words[1:]]
            done = helm.run("kubectl", *given, "--dry-run=client", "--output=yaml")
            secret = helm.read(done.stdout).one("Secret")
            made[secret["metadata"]["name"]] = secret["data"].keys()
    mounted = [one["secret"]["secretName"] for workload in (installed.server, installed.workers)
               for one in pod_of(workload)["spec"]["volumes"] if "secret" in one]  # fmt: skip
    assert sorted(made) == sorted(mounted)
    assert all(made.values())


def test_shards_get_the_certificate_and_the_operators_files_of_the_page(
    helm: Helm, releases: dict[str, Rendered], tmp_path: Path
) -> None:
    certs = tmp_path / "certs"
    line = [word.replace("NAMESPACE", NAMESPACE) for word in of_page("gemps")[1]]
    subprocess.run([sys.executable, "-m", "gem_cli", *line[1:]], cwd=tmp_path, check=True)
    names_in_certificate = names_of((certs / "server" / "server.crt").read_bytes())
    services = releases["shards"].of_kind("Service")
    (domain,) = {address(one, "pod").removeprefix("pod") for one in services if "clusterIP" in one["spec"]}
    assert {"gemps", f"*{domain}"} <= set(names_in_certificate)

    (words,) = [words for words in of_page("kubectl") if "gemps-operator" in words]
    given = [word.replace("=certs", f"={certs}") for word in words[1:]]
    done = helm.run("kubectl", *given, "--dry-run=client", "--output=yaml")
    secret = helm.read(done.stdout).one("Secret")
    spec = pod_of(releases["shards"].server)["spec"]
    (volume,) = [one for one in spec["volumes"] if one["name"] == "operator"]
    assert volume["secret"] == {"secretName": secret["metadata"]["name"], "defaultMode": 0o440}
    assert all(read_shard_credentials(certs / "operator"))
    assert {"ca.crt", "client.crt", "client.key", "token"} == secret["data"].keys()


def test_kubectl_takes_the_lines_of_the_page(helm: Helm, installed: Rendered) -> None:
    scaled = helm.template(VALUE_SETS["elastic"])
    for words in of_page("kubectl"):
        if words[1] != "create":
            names(words, scaled if "deployment" in words else installed)
            cut = words[1 : words.index(">")] if ">" in words else words[1:]
            said = helm.run("kubectl", *cut).stderr
            assert any(one in said for one in NO_CLUSTER), said


def test_helm_takes_the_lines_of_the_page(helm: Helm) -> None:
    for words in of_page("helm"):
        said = helm.run(*words).stderr
        assert any(one in said for one in NO_CLUSTER), said
        if words[1] == "upgrade":
            helm.checked("template", words[2], words[3], "--set", "insecure=true", *values_of(words))


def test_values_of_the_page_are_valid(helm: Helm, tmp_path: Path) -> None:
    (block,) = [one for one in blocks_of(PAGE) if one.language == "yaml"]
    (tmp_path / "run.yaml").write_text(block.text, encoding="utf-8")
    text = helm.checked("template", "gemps", "deploy/helm/gemps", "-f", tmp_path / "run.yaml", "--set", "insecure=true")
    assert helm.read(text, VERSIONS).wrong == []


@pytest.mark.parametrize("name", ["trusted", "tls", "elastic", "closed", "shards"])
def test_notes_say_commands_that_work(helm: Helm, releases: dict[str, Rendered], name: str) -> None:
    notes = helm.notes(VALUE_SETS[name])
    lines = [line.strip() for line in notes.splitlines() if line.startswith("  ")]
    assert lines
    for line in lines:
        words = shlex.split(re.split(r" [>|] ", line)[0], comments=True)
        for one in simple_commands(" ".join(words[words.index("gemps") :]) if "gemps" in words else ""):
            assert command_line.objection(one.words[1:], {}) == "", line
        if words[0] in ("kubectl", "helm"):
            assert words[1:3] == ["-n", "team"], line
            names(words, releases[name])
            said = helm.run(*words).stderr
            assert any(one in said for one in NO_CLUSTER), said
    assert ("port-forward gemps-server-0 8080" in notes) is (name != "closed")
    assert ("exec gemps-server-0 -- gemps finish" in notes) is (name == "trusted")
    assert ("scale deployment" in notes) is (name == "elastic")
    assert ("gemps shards merge state-0 state-1 state-2 --output" in notes) is (name == "shards")
