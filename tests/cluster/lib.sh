# SPDX-License-Identifier: Apache-2.0
# What the tests on loopback share: services_start N [THREADS] starts N services as N nodes of one cluster in $work, each with one CPU
# slot (or $slots of what it has); services_stop ends them. $work goes away with the shell. Needs $DTRAIN_ROOT's installed tree, or dtrain on PATH.
set -eu
src=${DTRAIN_SOURCE:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
shared=$src/../shared
if [ -n "${DTRAIN_ROOT:-}" ]; then PATH=$DTRAIN_ROOT/bin:$DTRAIN_ROOT/sbin:$PATH; fi
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
skip() { echo "$*"; exit 77; }
die() { echo "FAILED: $*" >&2; exit 1; }
command -v dtraind >/dev/null && command -v dtrain >/dev/null || skip "dtrain is not installed: set DTRAIN_ROOT"

work=$(mktemp -d "${TMPDIR:-/tmp}/dtrain-test-XXXXXX")
service_pids=()
lib_exit() {
	local status=$?
	if [ $status != 0 ] && [ $status != 77 ]; then tail -n 15 "$work"/node*/dtraind.log 2>/dev/null || true; fi
	services_stop
	rm -rf "$work"
	exit $status
}
trap lib_exit EXIT

free_ports() { # N: ports that were free a moment ago, from the kernel
	python3 - "$1" <<-'EOF'
		import socket, sys
		s = [socket.socket() for _ in range(int(sys.argv[1]))]
		for x in s: x.bind(("127.0.0.1", 0))
		print(*[x.getsockname()[1] for x in s])
	EOF
}
service_start() { # I: starts node I's service (again), with the GPUs that $DTRAIN_TEST_GPUS names: none
	CUDA_VISIBLE_DEVICES=${DTRAIN_TEST_GPUS-} dtraind --config "$work/node$1/dtraind.conf" 2>>"$work/node$1/dtraind.log" &
	service_pids[$1]=$!
}
services_start() {
	local n=$1 threads=${2:-1} i ports
	ports=($(free_ports "$n"))
	for i in $(seq 1 "$n"); do echo "node$i addr=127.0.0.1 port=${ports[i - 1]} slots=${slots:-1}"; done >"$work/hosts"
	dtrain keygen --output "$work/cluster.pem" >/dev/null
	for i in $(seq 1 "$n"); do
		mkdir -p "$work/node$i"
		cat >"$work/node$i/dtraind.conf" <<-EOF
			node = "node$i"; hosts_file = "$work/hosts"; cluster_key = "$work/cluster.pem"; listen = "127.0.0.1"; group = "";
			socket = "$work/node$i/dtraind.sock"; state_dir = "$work/node$i/state"; runtime_dir = "$work/node$i/run";
			log_dir = "$work/node$i/log"; cpu_slots = 1; slot_threads = $threads;
			worker_dir = "${DTRAIN_ROOT:-/usr}/libexec/dtrain";
		EOF
		service_start "$i"
	done
	export DTRAIN_SOCKET=$work/node1/dtraind.sock
	dtrain nodes --wait "$n" --timeout 30 >/dev/null || die "the services do not come up"
}
services_stop() {
	local p
	for p in "${service_pids[@]}"; do kill "$p" 2>/dev/null || true; done
	for p in "${service_pids[@]}"; do wait "$p" 2>/dev/null || true; done
	service_pids=()
}
