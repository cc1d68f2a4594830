#!/usr/bin/env bash
# Puts in place what the make targets need and a new machine may lack. Quick where nothing is missing, never asks.
#
#   tools/setup.sh [race] [browser] [peers]
#
# Always: Go (checked, not installed), root certificates for fetching modules, PostgreSQL 15 or newer (binaries only: no
# cluster is made and nothing is started). race: a C compiler for the race detector. browser: Chromium for the console's
# tests. peers: the programs that `make bench-peers` compares with.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly min_postgres=15
packages=()

fail() {
	printf 'setup: %s\n' "$*" >&2
	exit 1
}

# version_least A B: A is B or newer.
version_least() {
	[ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]
}

check_go() {
	local want have
	want=$(awk '$1 == "go" { print $2 }' go.work)
	command -v go >/dev/null || fail "Go $want or newer is needed and not in PATH; see https://go.dev/doc/install"
	have=$(GOWORK=off GOTOOLCHAIN=local go env GOVERSION 2>/dev/null | sed 's/^go//; s/[ -].*//')
	if ! version_least "$have" "$want" && [ "$(go env GOTOOLCHAIN)" = local ]; then
		fail "Go $want or newer is needed, $(command -v go) is $have; see https://go.dev/doc/install"
	fi
}

# postgres_major prints the newest PostgreSQL's major version, or 0.
postgres_major() {
	local bin major newest=0
	for bin in "$(command -v postgres || true)" /usr/lib/postgresql/*/bin/postgres; do
		[ -x "$bin" ] || continue
		major=$("$bin" --version | sed -n 's/^postgres (PostgreSQL) \([0-9]*\).*/\1/p')
		[ "${major:-0}" -gt "$newest" ] && newest=$major
	done
	echo "$newest"
}

# installed PACKAGE: by dpkg, where there is one.
installed() {
	command -v dpkg-query >/dev/null &&
		[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

need_certificates() {
	# Systems without dpkg keep them elsewhere and come with them.
	if command -v dpkg-query >/dev/null && [ ! -s "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" ]; then
		packages+=(ca-certificates)
	fi
}

need_postgres() {
	[ "$(postgres_major)" -ge "$min_postgres" ] || packages+=(postgresql)
}

need_compiler() {
	command -v "$(go env CC)" >/dev/null || packages+=(gcc libc6-dev)
}

need_browser() {
	command -v chromium >/dev/null || command -v google-chrome >/dev/null || packages+=(chromium)
}

need_peers() {
	installed postgresql-comparator || packages+=(postgresql-comparator)
}

install_packages() {
	local as_root=() rule=/etc/postgresql-common/createcluster.d/lockstep.conf
	command -v apt-get >/dev/null || fail "please install by hand: ${packages[*]} (names as in Debian)"
	if [ "$(id -u)" != 0 ]; then
		sudo -n true 2>/dev/null || fail "neither root nor sudo without a password; please run as root: apt-get install ${packages[*]}"
		as_root=(sudo -n)
	fi
	as_root+=(env DEBIAN_FRONTEND=noninteractive)
	echo "setup: installing ${packages[*]}" >&2

	# Tests and demo run clusters of their own; the package's default one would only take the port.
	if [[ " ${packages[*]} " == *" postgresql "* ]]; then
		"${as_root[@]}" mkdir -p "$(dirname "$rule")"
		echo 'create_main_cluster = false' | "${as_root[@]}" tee "$rule" >/dev/null
		# shellcheck disable=SC2064 # the values of now
		trap "${as_root[*]} rm -f $rule" EXIT
	fi
	local install=(apt-get -q -y -o DPkg::Lock::Timeout=120 install --no-install-recommends "${packages[@]}")
	local log
	log=$(mktemp)
	# An old package list, or none, names files that are not to be had: only then is it fetched anew.
	if ! "${as_root[@]}" "${install[@]}" >"$log" 2>&1 &&
		! { "${as_root[@]}" apt-get -q update && "${as_root[@]}" "${install[@]}"; } >"$log" 2>&1; then
		cat "$log" >&2
		rm -f "$log"
		fail "apt-get could not install: ${packages[*]}"
	fi
	rm -f "$log"
}

check_go
need_certificates
need_postgres
for part in "$@"; do
	case $part in
	race) need_compiler ;;
	browser) need_browser ;;
	peers) need_peers ;;
	*) fail "unknown part '$part'; known: race browser peers" ;;
	esac
done
if [ ${#packages[@]} -gt 0 ]; then
	install_packages
	major=$(postgres_major)
	[ "$major" -ge "$min_postgres" ] || fail "PostgreSQL $min_postgres or newer is needed; this system's package is $major"
fi
