#!/usr/bin/env bash
# Runs the claim fence of every site and sums up what the sites counted:
#   sites=N rounds=100 stale_writes=0 lost=0 stuck=0
set -euo pipefail
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
go test ./services/... -run '^TestFence' -count=1 -v "$@" >"$log" 2>&1 || status=$?
grep -E '^(fence |--- |FAIL|panic)|_test\.go:' "$log" || true
awk -v status="$status" '
	/^fence site=/ {
		if (!seen[$2]++) sites++
		runs++
		for (i = 3; i <= NF; i++) { split($i, kv, "="); sum[kv[1]] += kv[2] }
	}
	END {
		rounds = runs ? sum["rounds"] / runs : 0
		printf "sites=%d rounds=%d stale_writes=%d lost=%d stuck=%d\n", sites, rounds, sum["stale_writes"], sum["lost"], sum["stuck"]
		exit !(status == 0 && sites > 0 && rounds == 100 && sum["stale_writes"] + sum["lost"] + sum["stuck"] == 0)
	}' "$log"
