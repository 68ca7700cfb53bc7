# SPDX-License-Identifier: Apache-2.0
# For tests that start workers directly, without a service. The scripts source it; it defines $tmp, which is removed at the end, and these functions.
src=${DTRAIN_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
worker=${DTRAIN_WORKER:-${DTRAIN_BUILD:-.}/dtrain-worker-cpu}
[ -x "$worker" ] || { echo "no worker at $worker: set DTRAIN_BUILD to a build directory"; exit 77; }
worker=$(readlink -f "$worker")
tmp=$(mktemp -d "${TMPDIR:-/tmp}/dtrain-engine-XXXXXX")
pids=
cleanup() {
	for p in $pids; do kill -9 "$p" 2>/dev/null; done
	rm -rf "$tmp"
}
trap cleanup EXIT
# Everything random is a function of SEED; SEED=N repeats it.
SEED=${SEED:-$RANDOM}
RANDOM=$SEED
echo "SEED=$SEED"
fail() {
	echo "FAILED: $*" >&2
	exit 1
}
# json NAME OUTPUT-DIR TRAIN OUTPUT [DATA]: writes $tmp/NAME.json; TRAIN, OUTPUT and DATA are members that are added to these groups.
json() {
	cat >"$tmp/$1.json" <<-EOF
		{"task": "pretrain", "directory": "$tmp", "model": {"init": "$src/tests/engine/bytes"},
		 "data": {"path": ["$src/LICENSE"], "format": "text", "max_length": 64, "packing": true,
		          "cache_dir": "$tmp/cache"${5:+, $5}},
		 "train": {"learning_rate": 0.003, "warmup_steps": 3, "micro_batch": 2, "shuffle": true, "precision": "fp32"${3:+, $3}},
		 "output": {"dir": "$2", "log_steps": 1${4:+, $4}}}
	EOF
}
# start NAME [LOG]: starts a worker of one rank in the background; its process is $pid.
start() {
	env -i PATH="$PATH" ${SIMT_PROTECT:+SIMT_PROTECT=1} ${SIMT_GEMM:+"SIMT_GEMM=$SIMT_GEMM"} ${SIMT_CUBLASLT:+"SIMT_CUBLASLT=$SIMT_CUBLASLT"} OMP_NUM_THREADS=1 DTRAIN_ATTEMPT="${attempt:-1}" ${DTRAIN_RUN_ID+"DTRAIN_RUN_ID=$DTRAIN_RUN_ID"} DTRAIN_CONFIG="$tmp/$1.json" "$worker" >"$tmp/${2:-$1}.log" 2>&1 &
	pid=$!
	pids="$pids $pid"
}
# run NAME [LOG]: the same, waits for its end, and returns its exit status.
run() {
	start "$@"
	wait "$pid"
}
# The numbers of metrics.jsonl that have to be the same, one line for each step: without marks and without measurements.
losses() {
	sed -E '/^\{"event"/d; s/,"(tokens_per_second|eta_seconds|time|[a-z]*_seconds|[a-z_]*memory_bytes|slowest_[a-z]*)":[^,}]*//g' "$1/metrics.jsonl"
}
# The number of lines of metrics.jsonl that report a step.
lines() { cat "$1/metrics.jsonl" 2>/dev/null | grep -c '"loss":'; }
# more NAME GROUPS: adds groups to the configuration.
more() {
	sed -i 's|"train": {|'"$2"', &|' "$tmp/$1.json"
}
# all_ranks NAME RANKS [OTHER]: runs so many ranks on the first device, those but the first with the configuration OTHER, and returns 1 where one
# of them failed.
all_ranks() {
	local r s=0 all= name=$1
	rm -rf "$tmp/meet-$1"
	mkdir "$tmp/meet-$1"
	for ((r = 0; r < $2; r++)); do
		env -i PATH="$PATH" OMP_NUM_THREADS=1 RANK=$r WORLD_SIZE="$2" LOCAL_RANK=$r DTRAIN_DEVICE=0 DTRAIN_ATTEMPT="${attempt:-1}" \
			DTRAIN_RENDEZVOUS_DIR="$tmp/meet-$1" DTRAIN_CONFIG="$tmp/$name.json" "$worker" >"$tmp/$1-$r.log" 2>&1 &
		all="$all $!"
		pids="$pids $!"
		name=${3:-$1}
	done
	for r in $all; do wait "$r" || s=1; done
	return $s
}
pair() { all_ranks "$1" 2 "${2:-}"; } # NAME [OTHER]
# loss_values NAME: one line for each step. near A B: whether the losses of 20 steps are equal to 1e-5.
loss_values() { losses "$tmp/$1" | sed -E 's/.*"loss":([^,]*),.*/\1/'; }
near() {
	paste -d ' ' <(loss_values "$1") <(loss_values "$2") |
		awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > max) max = d; n++ } END { printf "'"$2"': largest difference of the losses %.1e\n", max; exit !(n == 20 && max <= 1e-5) }'
}
# within A B PART: whether the losses of 20 steps differ by less than PART of them.
within() {
	paste -d ' ' <(loss_values "$1") <(loss_values "$2") |
		awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > max) max = d; n++ } END { printf "'"$2"': largest difference of the losses %.4f of them\n", max; exit !(n == 20 && max < '"$3"') }'
}
# same_run A B: the losses and the weights have the same bits.
same_run() {
	diff <(losses "$tmp/$1") <(losses "$tmp/$2") && cmp "$tmp/$1/model.safetensors" "$tmp/$2/model.safetensors" || fail "$2: not the losses and the weights of $1"
}
