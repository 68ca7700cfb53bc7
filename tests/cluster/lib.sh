# SPDX-License-Identifier: Apache-2.0
# Functions of the tests on loopback. services_start N [THREADS] starts N services as N nodes of one cluster in $work, each with one CPU slot
# (or $slots) and the given $settings; services_stop ends them. $work is removed at the end of the shell. Needs the installed tree in
# $DTRAIN_ROOT, or dtrain on PATH.
set -eu
src=${DTRAIN_SOURCE:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
# shellcheck disable=SC2034 # read by the scripts that source this one
shared=$src/../shared
if [ -n "${DTRAIN_ROOT:-}" ]; then PATH=$DTRAIN_ROOT/bin:$DTRAIN_ROOT/sbin:$PATH; fi
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
# Everything random is a function of SEED; SEED=N repeats it.
SEED=${SEED:-$RANDOM}
RANDOM=$SEED
echo "# SEED=$SEED"

. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
command -v dtraind >/dev/null && command -v dtrain >/dev/null || skip "dtrain is not installed: set DTRAIN_ROOT"

work=$(mktemp -d "${TMPDIR:-/tmp}/dtrain-test-XXXXXX")
service_pids=()
lib_exit() {
	local status=$?
	tap_exit
	if [ $status != 0 ] && [ $status != 77 ]; then tail -n 15 "$work"/node*/dtraind.log 2>/dev/null || true; fi
	services_stop
	# Runs continue when their service stops; a script that ends early may have left some.
	pkill -TERM -f "^dtrain-launch $work/" || true
	pkill -KILL -f "^dtraind --config $work/" || true
	rm -rf "$work"
	exit $status
}
trap lib_exit EXIT

# N: ports that were free a moment ago. They lie below the kernel's range for outgoing connections, one of which, of another test beside this
# one, would otherwise take a port before the service does; no function of SEED, which scripts that run side by side share.
free_ports() {
	python3 - "$1" <<-'EOF'
		import random, socket, sys
		first = int(open("/proc/sys/net/ipv4/ip_local_port_range").read().split()[0])
		s = []
		while len(s) < int(sys.argv[1]):
		    s.append(socket.socket())
		    try: s[-1].bind(("127.0.0.1", random.randrange(10000, first) if first > 12000 else 0))
		    except OSError: s.pop()
		print(*[x.getsockname()[1] for x in s])
	EOF
}
service_start() { # I: starts node I's service (again), with the GPUs that $DTRAIN_TEST_GPUS names: none
	CUDA_VISIBLE_DEVICES=${DTRAIN_TEST_GPUS-} dtraind --config "$work/node$1/dtraind.conf" 2>>"$work/node$1/dtraind.log" &
	service_pids[$1]=$!
}
services_start() {
	local n=$1 threads=${2:-1} i ports
	# shellcheck disable=SC2207 # numbers
	ports=($(free_ports "$n"))
	for i in $(seq 1 "$n"); do echo "node$i addr=127.0.0.1 port=${ports[i - 1]} slots=${slots:-1}"; done >"$work/hosts"
	dtrain keygen --output "$work/cluster.pem" >/dev/null || die "the key of the cluster cannot be made"
	for i in $(seq 1 "$n"); do
		mkdir -p "$work/node$i"
		cat >"$work/node$i/dtraind.conf" <<-EOF
			node = "node$i"; hosts_file = "$work/hosts"; cluster_key = "$work/cluster.pem"; listen = "127.0.0.1"; group = "";
			socket = "$work/node$i/dtraind.sock"; state_dir = "$work/node$i/state"; runtime_dir = "$work/node$i/run";
			log_dir = "$work/node$i/log"; cpu_slots = 0; slot_threads = $threads;
			worker_dir = "${DTRAIN_ROOT:-/usr}/libexec/dtrain"; ${settings:-}
		EOF
		service_start "$i"
	done
	export DTRAIN_SOCKET=$work/node1/dtraind.sock
	dtrain nodes --wait "$n" --timeout 120 >/dev/null || die "the services do not come up"
}
services_stop() {
	local p
	# One that was paused does not end before it goes on.
	for p in "${service_pids[@]}"; do kill "$p" 2>/dev/null && kill -CONT "$p" 2>/dev/null || true; done
	for p in "${service_pids[@]}"; do
		timeout 60 tail --pid="$p" -f /dev/null || kill -KILL "$p" 2>/dev/null || true # one that hangs must not hold up the test
		wait "$p" 2>/dev/null || true
	done
	service_pids=()
}
# service_end I: waits for the service of node I, which has been asked to stop, and returns its exit status.
service_end() {
	timeout 120 tail --pid="${service_pids[$1]}" -f /dev/null || { echo "node$1 does not end within 120 s"; return 1; }
	wait "${service_pids[$1]}"
}
# A program for a run that runs until FILE exists, or for ten minutes, since a run continues when the services of a failed test have stopped.
until_file() { echo "n=0; until [ -e $1 ] || [ \$((n += 1)) -gt 12000 ]; do sleep 0.05; done"; }
