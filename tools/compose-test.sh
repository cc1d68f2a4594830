#!/usr/bin/env bash
# Runs deploy/compose.yaml for real: builds the images, starts everything, shows the demo over it, kills each service and
# a database in mid-run, cuts the network, and checks that each task ends as if nothing had happened: every damaged row
# mended, once. Takes everything away again.
#
# It needs a Docker engine with compose. As root on Debian, where none runs, it installs Debian's and starts an engine of
# its own in .cache/docker for as long as it lasts. Elsewhere it says that it is skipped, and exits with 0. Images that
# cannot be pulled are made from the programs on this machine (Go, PostgreSQL 15 or newer).
#
# KEEP=1 leaves the engine's data for the next run, which then builds in seconds.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly work=$PWD/.cache/compose-test
readonly project=lockstep-test
readonly go_image=golang:1.26-bookworm postgres_image=postgres:17-bookworm
# What a task has to mend, and how fast it may: it takes 20 seconds, so that a kill is in its middle.
readonly damaged=400 rate=20

say() { printf '== %s (%d s)\n' "$*" "$SECONDS"; }
skip() {
	printf 'compose-test: SKIPPED: %s\n' "$*" >&2
	exit 0
}
fail() {
	printf 'compose-test: FAILED: %s\n' "$*" >&2
	exit 1
}

## The engine

engine_pid=
find_engine() {
	if command -v docker >/dev/null && docker info >/dev/null 2>&1; then
		find_compose || skip "there is a Docker engine, but neither docker compose nor docker-compose"
		return
	fi
	[ "$(id -u)" = 0 ] || skip "no Docker engine answers, and only root can start one"
	if ! command -v dockerd >/dev/null || ! find_compose; then
		command -v apt-get >/dev/null || skip "no Docker engine is installed, and this is no Debian"
		say "installing Debian's Docker"
		apt-get -q update >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends docker.io docker-compose >/dev/null ||
			skip "Debian's docker.io and docker-compose could not be installed"
		find_compose
	fi
	local run
	run=$(mktemp -d /tmp/lockstep-docker-XXXXXX) # a socket's path is short
	export DOCKER_HOST=unix://$run/docker.sock
	dockerd --host "$DOCKER_HOST" --data-root "$PWD/.cache/docker" --exec-root "$run/exec" --pidfile "$run/pid" >"$work/dockerd.log" 2>&1 &
	engine_pid=$!
	for _ in $(seq 60); do
		docker info >/dev/null 2>&1 && return
		kill -0 "$engine_pid" 2>/dev/null || break
		sleep 1
	done
	engine_pid=
	tail -n 5 "$work/dockerd.log" >&2
	skip "dockerd does not start on this machine; the end of its log is above"
}

# Debian's client builds by itself; another one needs its buildx.
find_compose() {
	if [ -x /usr/bin/docker ] && ! docker buildx version >/dev/null 2>&1; then
		docker() { /usr/bin/docker "$@"; }
	fi
	if docker compose version >/dev/null 2>&1; then
		compose=(docker compose)
	elif [ -x /usr/bin/docker-compose ]; then
		compose=(/usr/bin/docker-compose)
	else
		return 1
	fi
}

## Images

# have IMAGE: it is here, or can be pulled.
have() {
	docker image inspect "$1" >/dev/null 2>&1 || timeout 30 docker pull -q "$1" >/dev/null 2>&1
}

# closure PROGRAM...: the programs and the libraries they load, where they really are, without the leading slash.
closure() {
	local file
	for file in "$@"; do
		echo "$file"
		ldd "$file" 2>/dev/null | grep -o '/[^ ]*' || true
	done | sort -u | while read -r file; do
		echo "$(realpath "$(dirname "$file")")/$(basename "$file")"
		realpath "$file"
	done | cut -c2- | sort -u
}

# The links of a system whose programs are all in /usr.
merged_usr() { for link in bin sbin lib lib64; do [ ! -L "/$link" ] || echo "$link"; done; }

standin_go() {
	local goroot modules=$work/modules
	goroot=$(go env GOROOT)
	# The modules that the programs are built from, for a build without a network.
	(cd services && CGO_ENABLED=0 GOMODCACHE=$modules GOFLAGS=-modcacherw GOSUMDB=off \
		GOPROXY="file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)" go list -deps ./center ./consumer ./lockstep >/dev/null)
	{
		merged_usr
		closure "$(command -v bash)" "$(command -v cp)" "$(command -v mkdir)" "$(command -v dash)"
		echo "${goroot#/}"
		echo etc/ssl/certs/ca-certificates.crt
	} >"$work/go.files"
	ln -sf dash "$work/sh"
	mkdir -p -m 1777 "$work/tmp"
	tar -C / -c -T "$work/go.files" -C "$work" sh tmp -C "$modules/cache" download --transform 's,^sh$,usr/bin/sh,;s,^download,standin/proxy,' |
		docker import -c "ENV PATH=$goroot/bin:/usr/bin:/bin" -c 'ENV GOPATH=/go' -c 'ENV GOPROXY=file:///standin/proxy' -c 'ENV GOSUMDB=off' - "$1" >/dev/null
	rm -rf "$modules"
}

# A PostgreSQL image that does what the official one is asked for here: a data folder made at the first start, by the
# files of /docker-entrypoint-initdb.d and the password of a file, then the server, as user postgres.
standin_postgres() {
	local bin root=$work/postgres
	bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
	[ -n "$bin" ] || skip "$postgres_image cannot be pulled, and there is no PostgreSQL on this machine to make one from"
	mkdir -p "$root"
	cat >"$root/entrypoint" <<'SCRIPT'
#!/bin/bash
set -euo pipefail
if [ "$(id -u)" = 0 ]; then
	install -d -o postgres -g postgres -m 700 "$PGDATA"
	export PASSWORD=$(cat "$POSTGRES_PASSWORD_FILE")
	exec setpriv --reuid=postgres --regid=postgres --clear-groups "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
	initdb -D "$PGDATA" -U postgres --auth-local=trust --auth-host=scram-sha-256 --pwfile=<(echo "$PASSWORD") --encoding=UTF8 --locale=C >/dev/null
	echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
	pg_ctl -D "$PGDATA" -o "-c listen_addresses= -c unix_socket_directories=/run/postgresql" -w start >/dev/null
	createdb -h /run/postgresql -U postgres "$POSTGRES_DB"
	for file in /docker-entrypoint-initdb.d/*.sql; do
		psql -q -v ON_ERROR_STOP=1 -h /run/postgresql -U postgres -d "$POSTGRES_DB" -f "$file"
	done
	pg_ctl -D "$PGDATA" -m fast -w stop >/dev/null
fi
exec postgres -D "$PGDATA" -c listen_addresses='*' -c unix_socket_directories=/run/postgresql
SCRIPT
	chmod 755 "$root/entrypoint"
	# Mounts in the place of these have their modes, from the second start on.
	mkdir -p "$root/run/postgresql" "$root/tmp"
	chmod 3777 "$root/run/postgresql"
	chmod 1777 "$root/tmp"
	printf 'root:x:0:0::/root:/bin/bash\npostgres:x:999:999::/var/lib/postgresql:/bin/bash\n' >"$root/passwd"
	printf 'root:x:0:\npostgres:x:999:\n' >"$root/group"
	local programs=() name
	for name in bash dash cat id install setpriv ls; do programs+=("$(command -v "$name")"); done
	{
		merged_usr
		# Server modules and what they load, apart from LLVM: jit is off without it.
		closure "${programs[@]}" "$(command -v locale)" "$bin"/{postgres,initdb,pg_ctl,psql,createdb,pg_isready} "$(dirname "$bin")"/lib/{plpgsql,dict_snowball}.so
		echo "usr/share/postgresql/$(basename "$(dirname "$bin")")"
		echo usr/share/zoneinfo
	} | sort -u >"$work/postgres.files"
	ln -sf dash "$work/sh"
	tar -C / -c -T "$work/postgres.files" -C "$root" entrypoint passwd group run tmp -C "$work" sh \
		--transform 's,^\(passwd\|group\)$,etc/\1,;s,^sh$,usr/bin/sh,' |
		docker import -c "ENV PATH=$bin:/usr/bin:/bin" -c 'ENV PGDATA=/var/lib/postgresql/data' -c 'ENTRYPOINT ["/entrypoint"]' - "$1" >/dev/null
}

build_images() {
	local from=$go_image target version
	version=$(git describe --tags --always --dirty 2>/dev/null || echo dev)
	have "$go_image" || {
		from=lockstep-standin-go
		docker image inspect "$from" >/dev/null 2>&1 || { say "$go_image cannot be pulled: a stand-in from this machine's Go" && standin_go "$from"; }
	}
	export POSTGRES_IMAGE=$postgres_image
	have "$postgres_image" || {
		POSTGRES_IMAGE=lockstep-standin-postgres
		docker image inspect "$POSTGRES_IMAGE" >/dev/null 2>&1 || { say "$postgres_image cannot be pulled: a stand-in from this machine's PostgreSQL" && standin_postgres "$POSTGRES_IMAGE"; }
	}
	for target in center consumer lockstep; do
		say "building the image of $target"
		DOCKER_BUILDKIT=1 docker build -q -f deploy/Dockerfile --build-arg GO_IMAGE="$from" --build-arg VERSION="$version" \
			--target "$target" -t "$project-$target" . >/dev/null
	done
	export LOCKSTEP_CENTER_IMAGE=$project-center LOCKSTEP_CONSUMER_IMAGE=$project-consumer LOCKSTEP_IMAGE=$project-lockstep
	docker images --format '{{.Repository}} {{.Size}}' | grep "^$project-"
}

## The deployment

up() { LOCKSTEP_PROJECT=$project COMPOSE="${compose[*]}" tools/compose.sh up; }
down() { LOCKSTEP_PROJECT=$project COMPOSE="${compose[*]}" tools/compose.sh down; }
container() { docker ps -aq --filter "label=com.docker.compose.project=$project" --filter "label=com.docker.compose.service=$1"; }
health() { docker inspect -f '{{.State.Health.Status}}' "$(container "$1")"; }
starts() { docker inspect -f '{{.State.StartedAt}}' "$(container "$1")"; }
lockstep() { .bin/lockstep "$@"; }

# await SECONDS WHAT COMMAND...: until it succeeds.
await() {
	local end=$((SECONDS + $1)) what=$2 seconds=$1
	shift 2
	while [ "$SECONDS" -lt "$end" ]; do
		"$@" >/dev/null 2>&1 && return
		sleep 0.2
	done
	fail "$what did not happen within $seconds s"
}
is_health() { [ "$(health "$1")" = "$2" ]; }

sql() { docker exec -i "$(container "$1-db")" psql -X -A -t -h /run/postgresql -U postgres -d "$1" -c "$2"; }
# denied DATABASE SQL WHAT: the database refuses it for want of a right.
denied() {
	local out
	out=$(sql "$1" "$2" 2>&1) && fail "$3"
	[[ $out == *"permission denied"* ]] || fail "$3: $out"
}

## Tasks

# Rows of the largest form that both sides hold, that the demo left equal, and that have a revision: without one none is mended.
readonly rows="tenant_id = 101 AND form_id = 'course-feedback' AND retired_at IS NULL AND revision > 0 AND NOT EXISTS (
	SELECT FROM lockstep.outcome o WHERE o.tenant_id = 101 AND o.record_key = uuid_send(p.answer_id) AND o.outcome <> 'REPAIRED')"
broken() { sql consumer "SELECT count(*) FROM hall.answer_projection WHERE \"values\" ? 'broken'"; }
# writes: how often the rows of the form were written.
writes() { sql consumer "SELECT sum(projection_version) FROM hall.answer_projection WHERE tenant_id = 101 AND form_id = 'course-feedback'"; }
state() { lockstep task show "$1" --json | sed -n 's/^ *"state": "TASK_STATE_\([^"]*\)".*/\1/p' | head -n 1; }
has_ended() { [[ $(state "$1") =~ ^(COMPLETED|PARTIAL|FAILED|CANCELLED)$ ]]; }
attempted() { [ "$(lockstep task show "$1" --json | sed -n 's/^ *"attempt": \([0-9]*\).*/\1/p' | head -n 1)" -ge 1 ]; }

# damage breaks rows; reconcile makes a task that mends them.
task='' written=''
damage() {
	sql consumer "UPDATE hall.answer_projection SET \"values\" = '{\"broken\": 1}', content_hash = sha256('broken') WHERE answer_id IN (
		SELECT answer_id FROM hall.answer_projection p WHERE $rows ORDER BY answer_id LIMIT $damaged)" >/dev/null
	[ "$(broken)" = "$damaged" ] || fail "$(broken) rows are damaged, want $damaged"
	written=$(writes)
}
reconcile() {
	task=$(lockstep task create --consumer demo-hall --tenant 101 --collection course-feedback --json | sed -n 's/^ *"taskId": "\([^"]*\)".*/\1/p' | head -n 1)
	[ -n "$task" ] || fail "no task was made"
}
# in_mid_run waits until the task has mended some rows, and wants others to be left. The waiting is the database's: to ask it
# anew from outside takes too long on a busy machine.
in_mid_run() {
	local left
	left=$(sql consumer "DO \$\$ BEGIN
		FOR i IN 1..600 LOOP
			EXIT WHEN (SELECT count(*) FROM hall.answer_projection WHERE \"values\" ? 'broken') < $damaged;
			PERFORM pg_sleep(0.1);
		END LOOP; END \$\$; SELECT count(*) FROM hall.answer_projection WHERE \"values\" ? 'broken'" | tail -n 1)
	[ "$left" -lt "$damaged" ] || fail "task $task mended nothing in a minute"
	[ "$left" -gt 0 ] || fail "task $task is over: that is no mid-run"
	say "  $((damaged - left)) of $damaged rows are mended"
}
# outlived SERVICE: the task ended after the service's newest start.
outlived() {
	[ "$(sql center "SELECT ended_at > '$(starts "$1")' FROM lockstep.task WHERE task_id = '$task'")" = t ] ||
		fail "task $task ended before the $1 was there again"
}
# ends_well: the task ends as if nothing had happened.
ends_well() {
	await 120 "the end of task $task" has_ended "$task"
	# The demo leaves rows of this form open on purpose, so that PARTIAL is its right end.
	[ "$(state "$task")" = PARTIAL ] || fail "task $task ended $(state "$task"), want PARTIAL"
	[ "$(broken)" = 0 ] || fail "task $task left $(broken) damaged rows"
	[ $(($(writes) - written)) = "$damaged" ] || fail "task $task wrote $(($(writes) - written)) times, want $damaged: once a row"
	local noted
	noted=$(sql consumer "SELECT count(*) FROM lockstep.outcome WHERE task_id = '$task' AND outcome = 'REPAIRED'")
	[ "$noted" = "$damaged" ] || fail "task $task noted $noted repairs, want $damaged"
}

## Stages

test_isolation() {
	say "what a container may do"
	local id out
	for id in center consumer; do
		out=$(docker inspect -f '{{.Config.User}} {{.HostConfig.ReadonlyRootfs}} {{.HostConfig.CapDrop}} {{.HostConfig.SecurityOpt}}' "$(container "$id")")
		[[ $out == [1-9]*" true [ALL] [no-new-privileges:true]" ]] || fail "$id runs as: $out"
	done
	out=$(docker ps --filter "label=com.docker.compose.project=$project" --format '{{.Ports}}' | grep -o '[0-9.:]*->' | grep -v '^127\.0\.0\.1:' || true)
	[ -z "$out" ] || fail "published beyond loopback: $out"
	denied center 'SET ROLE lockstep_center; CREATE TABLE lockstep.x ()' "the center's role may make tables"
	denied center 'SET ROLE lockstep_source; UPDATE answers.answer SET revision = 0' "the source's role may write"
	denied consumer 'SET ROLE lockstep_consumer; DELETE FROM hall.answer_projection' "the consumer's role may delete"
}

test_demo() {
	say "the demo over it"
	lockstep demo --against "$LOCKSTEP_SECRETS/against.json"
}

test_settings() {
	say "a setting that changes without a build: $rate repairs a second"
	local before
	before=$(docker inspect -f '{{.Image}}' "$(container consumer)")
	echo "limits: {repairs_per_second: $rate}" >>"$LOCKSTEP_SETTINGS/consumer.yaml"
	up
	[ "$(docker inspect -f '{{.Image}}' "$(container consumer)")" = "$before" ] || fail "the image was built again"
	local start=$SECONDS
	damage
	reconcile
	ends_well
	[ $((SECONDS - start)) -ge $((damaged / rate - 1)) ] || fail "$damaged repairs took $((SECONDS - start)) s: the setting does not count"
}

# crash SERVICE ends its process like a crash, and waits until the engine has started another one.
crash() {
	local before
	before=$(starts "$1")
	if [ -n "$engine_pid" ]; then
		kill -9 "$(docker inspect -f '{{.State.Pid}}' "$(container "$1")")"
	else # processes of another engine may be out of reach; and what is killed through it stays down
		docker kill -s KILL "$(container "$1")" >/dev/null
		docker start "$(container "$1")" >/dev/null
	fi
	await 60 "the $1's start after its crash" is_new "$1" "$before"
}
is_new() { [ "$(starts "$1")" != "$2" ] && [ "$(docker inspect -f '{{.State.Running}}' "$(container "$1")")" = true ]; }

test_kill() {
	local service
	for service in center consumer; do
		say "killing the $service in mid-run"
		damage
		reconcile
		in_mid_run
		crash "$service"
		await 60 "the $service's return" is_health "$service" healthy
		ends_well
		outlived "$service"
	done
}

test_database() {
	local side
	for side in center consumer; do
		say "killing the $side's database in mid-run"
		damage
		reconcile
		in_mid_run
		crash "$side-db"
		await 60 "the database's return" is_health "$side-db" healthy
		await 60 "the $side's readiness" is_health "$side" healthy
		ends_well
		outlived "$side-db"
	done
}

test_partition() {
	local between=${project}_between left
	say "cutting the network between the two before the task"
	damage
	docker network disconnect "$between" "$(container consumer)"
	reconcile
	await 60 "an attempt that fails" attempted "$task"
	! has_ended "$task" || fail "task $task ended while its consumer was away"
	docker network connect --alias consumer "$between" "$(container consumer)"
	ends_well

	say "cutting it in mid-run"
	damage
	reconcile
	in_mid_run
	docker network disconnect "$between" "$(container consumer)"
	await 60 "a try that fails" has_failed_to_reach "$task"
	left=$(broken)
	[ "$left" -gt 0 ] || fail "task $task had nothing left to do when the network was cut"
	docker network connect --alias consumer "$between" "$(container consumer)"
	ends_well
}
has_failed_to_reach() { [ "$(sql consumer "SELECT retry_count FROM lockstep.work WHERE task_id = '$1'")" -ge 1 ]; }

test_equal() {
	say "nothing is left, lost or doubled"
	local n
	n=$(sql consumer "SELECT count(*) FROM hall.answer_projection WHERE \"values\" ? 'broken'")
	[ "$n" = 0 ] || fail "$n damaged rows were not repaired"
	n=$(sql center "SELECT count(*) FROM lockstep.task_result GROUP BY task_id HAVING count(*) > 1")
	[ -z "$n" ] || fail "tasks with more than one deciding result"
	n=$(sql center "SELECT count(*) FROM lockstep.task WHERE ended_at IS NULL")
	[ "$n" = 0 ] || fail "$n tasks have not ended"
}

cleanup() {
	local status=$?
	trap - EXIT
	if [ -n "${LOCKSTEP_SECRETS:-}" ] && docker info >/dev/null 2>&1; then
		if [ "$status" != 0 ]; then "${compose[@]}" -p "$project" -f deploy/compose.yaml logs --tail 15 >&2 || true; fi
		down >/dev/null 2>&1 || true
	fi
	if [ -n "$engine_pid" ]; then
		kill "$engine_pid" && wait "$engine_pid" || true
		[ -n "${KEEP:-}" ] || rm -rf .cache/docker
		local run
		run=$(dirname "${DOCKER_HOST#unix://}")
		# Namespaces that were in use stay mounted when the engine ends.
		umount "$run"/exec/netns/* 2>/dev/null || true
		rm -rf "$run" || true
	fi
	exit "$status"
}

mkdir -p "$work"
trap cleanup EXIT
find_engine
build_images
export LOCKSTEP_SECRETS=$work/secrets # from here on there is something to take down
export LOCKSTEP_SETTINGS=$work/settings
rm -rf "$LOCKSTEP_SECRETS" "$LOCKSTEP_SETTINGS"
cp -r deploy/compose "$LOCKSTEP_SETTINGS"
up
export LOCKSTEP_CENTER_URL=https://127.0.0.1:18081 LOCKSTEP_CONSUMER_URL=https://127.0.0.1:18082
export LOCKSTEP_TOKEN_FILE=$LOCKSTEP_SECRETS/operator.token LOCKSTEP_CA_FILE=$LOCKSTEP_SECRETS/ca.crt
test_isolation
test_demo
test_settings
test_kill
test_database
test_partition
test_equal
down
say "passed after $SECONDS s"
