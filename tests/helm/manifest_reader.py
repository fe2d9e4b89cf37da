"""A process of the environment that has kubernetes-validate: reads YAML, and validates it.

For each line {"text": YAML, "versions": [of Kubernetes]} it prints a line {"manifests": [...], "wrong": [...]}. Kinds
without a schema (those of operators) are not judged.
"""

import json
import sys
from functools import cache

import yaml
from jsonschema.validators import Draft202012Validator
from kubernetes_validate.utils import all_versions, major_minor, schema_contents
from referencing import Registry, Resource

FULL_VERSIONS = {major_minor(version): version for version in all_versions()}


@cache
def registry(version: str) -> Registry:
    definitions = schema_contents(f"kubernetes-json-schema/v{version}-local-strict/_definitions.json", version)
    return (Resource.from_contents(definitions) @ Registry()).crawl()


@cache
def validator(version: str, api_version: str, kind: str) -> Draft202012Validator | None:
    group, _, number = api_version.rpartition("/")
    name = "-".join([kind.lower(), *([group.partition(".")[0]] if group else []), number])
    try:
        schema = schema_contents(f"kubernetes-json-schema/v{version}-local-strict/{name}.json", version)
    except FileNotFoundError:
        return None
    return Draft202012Validator(schema, registry=registry(version))


for line in sys.stdin:
    asked = json.loads(line)
    manifests = [one for one in yaml.safe_load_all(asked["text"]) if one]
    wrong = []
    for version in asked["versions"]:
        for one in manifests:
            judge = validator(FULL_VERSIONS[version], one["apiVersion"], one["kind"])
            wrong += [
                f"{version}: {one['kind']} {'.'.join(map(str, error.absolute_path))}: {error.message[:200]}"
                for error in (judge.iter_errors(one) if judge else ())
            ]
    print(json.dumps({"manifests": manifests, "wrong": wrong}), flush=True)
