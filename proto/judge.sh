#!/bin/sh
# Judge the protos: their style, and that they break nothing that baseline.txtpb promises. Needs Node.js.
#   proto/judge.sh [FOLDER]     another folder of protos than this one
#   proto/judge.sh --promise    write baseline.txtpb: promise what the protos say now. This belongs to a release, and to
#                               a change that is known to break workers.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
buf() { npx --yes @bufbuild/buf@1.75.0 "$@"; }
if [ "${1-}" = --promise ]; then
  cd "$here"
  buf build . --path gemps --exclude-source-info --output baseline.txtpb
else
  buf lint "${1-$here}"
  buf breaking "${1-$here}" --against "$here/baseline.txtpb"
fi
