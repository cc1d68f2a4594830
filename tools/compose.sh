#!/usr/bin/env bash
# The compose deployment, up or down; see deploy/compose.yaml.
#
#   tools/compose.sh up     makes the secrets where there are none, starts everything, waits until both services are ready
#   tools/compose.sh down   stops everything and removes the data; the secrets stay
#
# LOCKSTEP_SETTINGS is the folder of both settings files, LOCKSTEP_SECRETS that of the secrets, LOCKSTEP_PROJECT the compose
# project, COMPOSE the command, PROFILE a profile.
set -euo pipefail
cd "$(dirname "$0")/.."

export LOCKSTEP_SETTINGS=${LOCKSTEP_SETTINGS:-$PWD/deploy/compose}
export LOCKSTEP_SECRETS=${LOCKSTEP_SECRETS:-$PWD/deploy/secrets}
project=${LOCKSTEP_PROJECT:-lockstep}
if [ -n "${COMPOSE:-}" ]; then
	read -r -a compose <<<"$COMPOSE"
elif docker compose version >/dev/null 2>&1; then
	compose=(docker compose)
else
	compose=(docker-compose)
fi
compose+=(-p "$project" -f deploy/compose.yaml)
[ -z "${PROFILE:-}" ] || compose+=(--profile "$PROFILE")

# The services run as who owns the secrets; root's belong to the images' own user.
if [ "$(id -u)" = 0 ]; then
	export LOCKSTEP_USER=65532:65532
else
	LOCKSTEP_USER=$(id -u):$(id -g)
	export LOCKSTEP_USER
fi

ready() {
	local service id
	for service in center consumer; do
		id=$("${compose[@]}" ps -q "$service")
		[ "$(docker inspect -f '{{.State.Health.Status}}' "$id")" = healthy ] || return 1
	done
}

case ${1:-} in
up)
	[ -e "$LOCKSTEP_SECRETS" ] || .bin/lockstep secrets --out "$LOCKSTEP_SECRETS" --owner "$LOCKSTEP_USER"
	# Both are read at the start only: where a file of theirs is another one, the services are started anew.
	LOCKSTEP_FILES=$(find "$LOCKSTEP_SETTINGS" "$LOCKSTEP_SECRETS" -type f -print0 | sort -z | xargs -0 cat | cksum | tr ' ' -)
	export LOCKSTEP_FILES
	"${compose[@]}" up -d
	for _ in $(seq 120); do
		ready && exit 0
		sleep 1
	done
	"${compose[@]}" ps
	echo "the services are not ready after two minutes; see their logs: ${compose[*]} logs center consumer" >&2
	exit 1
	;;
down)
	# What runs by a profile goes, too, whether it is named or not.
	"${compose[@]}" --profile observability down --volumes --remove-orphans
	;;
*)
	echo "usage: $0 up | down" >&2
	exit 2
	;;
esac
