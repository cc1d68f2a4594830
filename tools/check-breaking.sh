#!/usr/bin/env bash
# Compares the contracts with the newest release, or with the last commit while there is none. AGAINST=ref overrides.
set -euo pipefail
cd "$(dirname "$0")/.."

against=${AGAINST:-$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null || echo HEAD)}
if [ -z "$(git ls-tree -r --name-only "$against" -- proto/lockstep 2>/dev/null | grep '\.proto$' || true)" ]; then
	echo "breaking changes: SKIPPED, $against has no proto to compare with" >&2
	exit 0
fi

earlier=$(mktemp -d)
trap 'rm -rf "$earlier"' EXIT
git archive "$against" buf.yaml proto/lockstep | tar -x -C "$earlier"
cp -r proto/third_party "$earlier/proto/"
.bin/buf breaking --against "$earlier"
echo "breaking changes: none against $against"
