#!/bin/sh
# pip install into /opt/gemps, while an image is built: from the wheels in /wheels where there are any, and otherwise from the
# index that pip is set up for. pip itself lives in /opt/pip, which is mounted for the time of the build and not part of the image.
set -eu
if ls /wheels/*.whl >/dev/null 2>&1; then
    set -- --no-index --find-links /wheels "$@"
fi
exec /opt/pip/bin/python -m pip --python /opt/gemps/bin/python \
    install --no-cache-dir --disable-pip-version-check --root-user-action ignore "$@"
