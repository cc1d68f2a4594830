#!/usr/bin/env bash
# Asks the Go vulnerability database about what the modules call. Without a way to the database it says so and passes.
set -euo pipefail
cd "$(dirname "$0")/.."

govulncheck=$PWD/.bin/govulncheck
for module in "$@"; do
	status=0
	output=$(cd "$module" && timeout 300 "$govulncheck" ./... 2>&1) || status=$?
	if [[ $status != 0 && $output == *"fetching vulnerabilities"* ]]; then
		echo "vulnerabilities: SKIPPED, the database cannot be reached" >&2
		exit 0
	fi
	printf '%s: %s\n' "$module" "$output"
	[ "$status" = 0 ] || exit "$status"
done
