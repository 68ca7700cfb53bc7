# SPDX-License-Identifier: Apache-2.0
# Functions of the parts of tests/gpu/run, which source this file. Each part is a process of its own; its environment has GPU_ENGINE (cuda, or
# simt: the emulated GPU), GPU_SRC and GPU_BUILD (source and build tree), GPU_WORK (a directory of this run), GPU_RESULTS (where results
# go), GPU_KEPT (a directory that the next call has, too), GPU_ENDS (the second at which the part is ended), GPU_PYTHON, and GPU_NONE (why
# there is no GPU; empty where there is one). GPU_FIRST is not empty where a part that measures should do only what is most important.
set -u
# shellcheck disable=SC2034 # read by the scripts that source this one
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
src=$GPU_SRC build=$GPU_BUILD part=${GPU_PART:-} work=$GPU_WORK/${GPU_PART:-}
tiny=$([ "$GPU_ENGINE" = simt ] && echo yes || true) # the emulator is slow: the smallest sizes
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
RANDOM=${SEED:=$RANDOM} # SEED=N does again what is random
kept=$GPU_KEPT/${GPU_PART:-}
mkdir -p "$work" "$kept"
echo "SEED=$SEED" >&2

# One tab-separated line for each result: part, pass|fail|skip, name, words. It is written at once, since the time of a run may end.
result() {
	printf '%s\t%s\t%s\t%s\n' "$part" "$1" "$2" "${3:-}" >>"$GPU_RESULTS"
	printf '%s: %s: %s%s\n' "${1^^}" "$part" "$2" "${3:+: $3}" >&2
}
pass() { result pass "$@"; }
fail() { result fail "$@"; }
skip() { result skip "$@"; }
# figure NAME OURS PEER RATIO [BOUND]: a line of the table; a bound (">= 1.3", "within 2 %") holds for the ratio, or for OURS where there is no ratio.
figure() {
	local holds=
	if [ -n "${5:-}" ]; then
		holds=$(awk -v x="${4:-$2}" -v bound="$5" 'BEGIN { split(bound, b, " "); ok = b[1] == ">=" ? x + 0 >= b[2] + 0 : x + 0 <= b[2] + 0
			if (b[1] == "within") ok = x >= 1 - b[2] / 100 && x <= 1 + b[2] / 100
			print ok && x == x + 0 ? "holds" : "MISSED" }')
	fi
	printf '%s\tfigure\t%s\t%s\t%s\t%s\t%s\t%s\n' "$part" "$1" "${2:-}" "${3:-}" "${4:-}" "${5:-}" "$holds" >>"$GPU_RESULTS"
	printf '%s: %s  %s  %s  %s  %s %s\n' "$part" "$1" "${2:-}" "${3:-}" "${4:-}" "${5:-}" "$holds" >&2
}
# step NAME COMMAND…: one step of a part. A part that is repeated does not repeat the steps that it has completed without a failure: their results
# are taken from the call before. Within one call, a step is not repeated either if it has failed.
step() {
	local file failed before f
	file=$kept/step-$(printf '%s' "$1" | tr -c 'A-Za-z0-9' _)
	failed=$file.failed-${GPU_WORK##*-}
	shift
	for f in "$file" "$failed"; do
		if [ -f "$f" ]; then
			cat "$f" >>"$GPU_RESULTS"
			return
		fi
	done
	rm -f "$file".failed-*
	# Other parts may write to the file at the same time.
	before=$(grep -c "^$part	" "$GPU_RESULTS")
	"$@"
	grep "^$part	" "$GPU_RESULTS" | tail -n +$((before + 1)) >"$file.new"
	if grep -q -P '\t(fail|skip)\t|\tMISSED$' "$file.new"; then mv "$file.new" "$failed"; else mv "$file.new" "$file"; fi
}
# The seconds that are left for the part; at most LIMIT of them, and at least 1, since 0 is no limit for timeout.
left() { # LIMIT
	local n=$((GPU_ENDS - $(date +%s) - 5))
	echo $((n < 1 ? 1 : n < $1 ? n : $1))
}
# note WORDS: adds a line below the table.
note() { printf '%s\tnote\t%s\n' "$part" "$*" >>"$GPU_RESULTS"; }

# Ends the part, with one line that says so, where there is no GPU.
need_gpu() {
	[ "$GPU_ENGINE" = simt ] || [ -z "$GPU_NONE" ] || { skip "$part" "no GPU: $GPU_NONE"; exit 0; }
}
# A program over the device: grad_dump, logits, train_bench, bench_allreduce, bench_attention, bench_gemm, test_device, test_device_attention.
program() {
	case $GPU_ENGINE in
	cuda) echo "$build/tests/gpu/$1_cuda" ;;
	*) case $1 in
		test_device) echo "$build/tests/simt/test_simt" ;;
		test_device_attention) echo "$build/tests/simt/test_simt_attention" ;;
		*) echo "$build/tests/simt/$1_simt" ;;
		esac ;;
	esac
}
# has NAME…: succeeds where these programs were built; otherwise it names the missing one.
has() {
	local p
	for p in "$@"; do
		[ -x "$(program "$p")" ] || { skip "$p" "$(program "$p") was not built"; return 1; }
	done
}
# check NAME LIMIT -- COMMAND…: one result by the exit status (77: skipped); its output goes to the log, its last line to the table. With
# $check_wants, these words have to be in the output, too.
check_wants=
check() {
	local name=$1 limit=$2
	shift 3
	step "$name" check_now "$name" "$limit" "$@"
}
# shellcheck disable=SC2317 # called by step
check_now() {
	local name=$1 limit=$2 status words
	shift 2
	timeout -k 5 "$limit" "$@" >"$work/check.log" 2>&1
	status=$?
	cat "$work/check.log"
	words=$(tail -n 1 "$work/check.log" | cut -c1-200)
	if [ $status = 0 ] && [ -z "$tiny" ] && grep -q 'Checks: 0,' <<<"$words"; then status=1; fi
	if [ $status = 0 ] && [ -n "$check_wants" ] && ! grep -q "$check_wants" "$work/check.log"; then status=1; fi
	case $status in
	0) pass "$name" "$words" ;;
	77) skip "$name" "$words" ;;
	124 | 137) fail "$name" "no end within $limit s" ;;
	*) fail "$name" "status $status: $(first_failures "$work/check.log")" ;;
	esac
	return $status
}
# The words of a failure from the output of a test, in one line: the count and the first failed assertions of Check, or the first errors, or
# its last lines.
first_failures() { # FILE
	local lines
	if grep -q -E ':[0-9]+:[FE]:' "$1"; then
		lines=$(grep -E '^[0-9]+%: Checks: ' "$1" | tail -n 1; grep -E ':[0-9]+:[FE]:' "$1" | head -n 4)
	else
		lines=$(grep -E 'FAIL|not ok|[Ee]rror: |ERROR:|^========= (Invalid|Error|Warning|Uninitialized|Program hit)|SUMMARY: [^0]' "$1" | head -n 4)
		lines=${lines:-$(tail -n 3 "$1")}
	fi
	cut -c1-300 <<<"$lines" | tr '\t' ' ' | awk '{ printf "%s%s", (NR > 1 ? " … " : ""), $0 }'
}
# json KEY: the value of KEY in the flat JSON object on stdin.
json() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^,\"}]*\).*/\1/p" | head -n 1; }
# of KEY FILE: a number of each line of metrics.jsonl.
of() { sed -n "s/.*\"$1\": *\([-+.0-9e]*\).*/\1/p" "$2"; }
# apart FILE FILE: the greatest difference of two columns of numbers, relative to the first; nothing where their lengths differ.
apart() {
	paste "$1" "$2" | awk 'NF != 2 { bad = 1 } { d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > worst) worst = d }
		END { if (!bad && NR) printf "%.2g\n", worst }'
}
at_most() { awk -v x="$1" -v y="$2" 'BEGIN { exit !(x != "" && x + 0 <= y + 0) }'; }
has_torch() {
	[ -n "$GPU_PYTHON" ] && "$GPU_PYTHON" -c 'import torch, transformers' 2>/dev/null ||
		{ skip "$1" "${GPU_PYTHON:-no python3}: no torch and transformers"; return 1; }
}

# Makes workers with the names that the services and test scripts expect. Each is a script, which sets the path of the driver, since the
# environment of ranks is clean, and which makes two ranks on one GPU look like two machines to NCCL.
worker_scripts() { # DIRECTORY
	local nccl="NCCL_NET=Socket NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_MNNVL_ENABLE=0" own=$build/dtrain-worker-cuda name=cuda
	mkdir -p "$1"
	if [ "$GPU_ENGINE" = simt ]; then own=$build/tests/simt/dtrain-worker-simt name=cpu; fi
	cat >"$1/dtrain-worker-$name" <<-EOF
		#!/bin/sh
		export LOCAL_RANK=0 $nccl NCCL_HOSTID=dtrain-test-\${RANK:-0}
		${LD_LIBRARY_PATH:+export LD_LIBRARY_PATH='$LD_LIBRARY_PATH'}
		${DTRAIN_LIBRARY_PATH:+export DTRAIN_LIBRARY_PATH='$DTRAIN_LIBRARY_PATH'}
		exec '$own' "\$@"
	EOF
	chmod +x "$1/dtrain-worker-$name"
	[ "$GPU_ENGINE" != simt ] || ln -sf dtrain-worker-cpu "$1/dtrain-worker-cuda"
	ln -sf "$build/dtrain-launch" "$build/dtrain-keygen" "$1"
	# shellcheck disable=SC2034 # read by the scripts that source this one
	gpu_worker=$1/dtrain-worker-$name
}
# Makes config.json and a byte-level tokenizer of a model with hidden size HIDDEN, heads of DIM, and LAYERS layers.
byte_model() { # DIRECTORY HIDDEN DIM LAYERS
	cp -r "$src/tests/engine/bytes" "$1"
	chmod -R u+w "$1"
	sed -i "s/\"hidden_size\": .*/\"hidden_size\": $2,/; s/\"head_dim\": .*/\"head_dim\": $3,/; s/\"num_hidden_layers\": .*/\"num_hidden_layers\": $4,/
		s/\"num_attention_heads\": .*/\"num_attention_heads\": $(($2 / $3)),/; s/\"num_key_value_heads\": .*/\"num_key_value_heads\": $((($2 / $3 + 1) / 2)),/
		s/\"intermediate_size\": .*/\"intermediate_size\": $(($2 * 11 / 4)),/; s/\"max_position_embeddings\": .*/\"max_position_embeddings\": 4096,/" "$1/config.json"
}
text_file() { if [ -r "$src/../shared/data/text/tinyshakespeare.txt" ]; then echo "$src/../shared/data/text/tinyshakespeare.txt"; else echo "$src/LICENSE"; fi; }
