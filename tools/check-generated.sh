#!/usr/bin/env bash
# Generates into a scratch folder and compares: fails where a committed file is stale, missing or left over from a
# proto that is gone. The tree itself is not touched.
set -euo pipefail
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# generated ROOT: the generated files under ROOT, by relative path.
generated() {
	(cd "$1" && find proto/lockstep docs/openapi \( -name '*.pb.go' -o -name '*.pb.gw.go' -o -name '*.swagger.json' \) | sort)
}

.bin/buf generate -o "$scratch"
if ! diff <(generated .) <(generated "$scratch") >&2; then
	echo "generated files: the list differs (< in the tree, > as generated); run 'make generate' and remove what is left over" >&2
	exit 1
fi
stale=0
while read -r file; do
	if ! cmp -s "$file" "$scratch/$file"; then
		echo "stale: $file" >&2
		stale=1
	fi
done < <(generated "$scratch")
if [ "$stale" = 1 ]; then
	echo "generated files: run 'make generate' and commit what changed" >&2
	exit 1
fi
go test ./services/center ./services/consumer -run '^TestSettingsReference$' -count=1 >/dev/null || {
	echo "stale: docs/operating/settings-*.md; run 'make generate' and commit what changed" >&2
	exit 1
}
echo "generated files: $(($(generated . | wc -l) + 2)), all up to date"
