"""CITATION.cff and CHANGELOG.md speak of the version that pyproject.toml has."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def project_version() -> str:
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return version


def test_citation_has_the_version_of_the_project() -> None:
    cited = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited == [project_version()]


def test_changelog_begins_with_the_version_of_the_project() -> None:
    versions = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert versions[0] == project_version()


def test_readme_and_citation_name_the_same_paper() -> None:
    for name in ("README.md", "CITATION.cff"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "1805.08469" in text
        assert "Gradient Energy Matching for Distributed Asynchronous Gradient Descent" in text
