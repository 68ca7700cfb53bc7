#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Two ranks with the same global batch as one rank have losses that are equal to 1e-5; killed and resumed, they have bitwise their own losses.
# When one rank dies, the other ends.
. "$(dirname "$0")/worker.sh"
steps=50
more=
start_rank() { # NAME RANK [CONFIG]; more variables of the environment in $more
	# shellcheck disable=SC2086 # $more is a list of assignments
	env -i $more PATH="$PATH" OMP_NUM_THREADS=1 DTRAIN_ATTEMPT="${attempt:-1}" RANK="$2" WORLD_SIZE="${ranks:-2}" LOCAL_RANK="$2" DTRAIN_RENDEZVOUS_DIR="$tmp/meet-$1" \
		DTRAIN_CONFIG="$tmp/${3:-$1}.json" "$worker" >"$tmp/$1-$2.log" 2>&1 &
	eval "rank$2=$!"
	pids="$pids $!"
}
pair() { # NAME
	mkdir -p "$tmp/meet-$1"
	start_rank "$1" 0
	start_rank "$1" 1
}
both() { # waits for both
	local s0 s1
	# shellcheck disable=SC2154 # set by start_rank
	wait "$rank0"; s0=$?
	# shellcheck disable=SC2154 # set by start_rank
	wait "$rank1"; s1=$?
	[ $s0 = 0 ] && [ $s1 = 0 ]
}
show() { cat "$tmp/$1-0.log" "$tmp/$1-1.log"; }
strategy() { # NAME STRATEGY: adds it to the configuration
	sed -i 's|"train": {|"parallel": {"strategy": "'"$2"'"}, &|' "$tmp/$1.json"
}
data='"eval_fraction": 0.1'

json one "$tmp/one" "\"max_steps\": $steps, \"accumulation\": 2" '"save_steps": 20' "$data"
json two "$tmp/two" "\"max_steps\": $steps, \"accumulation\": 1" '"save_steps": 20' "$data"
json cut "$tmp/cut" "\"max_steps\": $steps, \"accumulation\": 1" '"save_steps": 20' "$data"
strategy two ddp
strategy cut ddp
run one || { cat "$tmp/one.log"; fail "one rank"; }
pair two
both || { show two; fail "two ranks"; }
paste -d ' ' <(losses "$tmp/one" | sed -E 's/.*"loss":([^,]*),.*/\1/') <(losses "$tmp/two" | sed -E 's/.*"loss":([^,]*),.*/\1/') |
	awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > max) max = d; n++ } END { printf "%d steps, largest difference of the losses %.2e\n", n, max; exit !(n == '$steps' && max <= 1e-5) }' ||
	fail "one rank and two differ"

# Other strategies hold less of the model on each rank, and have the same losses. A rank that dies ends the other one also while the
# collectives of several communicators are under way.
for s in zero2 zero3; do
	json $s "$tmp/$s" "\"max_steps\": $steps, \"accumulation\": 1" '"save_steps": 20' "$data"
	strategy $s $s
	pair $s
	both || { show $s; fail "two ranks with $s"; }
	paste -d ' ' <(losses "$tmp/two" | sed -E 's/.*"loss":([^,]*),.*/\1/') <(losses "$tmp/$s" | sed -E 's/.*"loss":([^,]*),.*/\1/') |
		awk -v s=$s '{ d = $1 - $2; if (d < 0) d = -d; if (d > max) max = d; n++ } END { printf "%s: %d steps, largest difference of the losses %.2e\n", s, n, max; exit !(n == '$steps' && max <= 1e-5) }' ||
		fail "$s and ddp differ"
done

# Four ranks in two groups of two, each of which shares a copy of the model: the losses of two ranks with the same rows. Killed and resumed,
# they have their own, bitwise.
four() { # NAME
	local r
	mkdir -p "$tmp/meet-$1"
	started=
	for r in 0 1 2 3; do
		start_rank "$1" $r
		started="$started $!"
	done
}
all_four() {
	local p
	for p in $started; do wait "$p" || return 1; done
}
ranks=4
for name in hybrid hybrid-cut; do
	json $name "$tmp/$name" "\"max_steps\": $steps, \"accumulation\": 1" '"save_steps": 5' "$data"
	sed -i 's|"micro_batch": 2|"micro_batch": 1|; s|"train": {|"resources": {"devices_per_node": 4}, "parallel": {"strategy": "hybrid", "shard_degree": 2}, &|' "$tmp/$name.json"
done
four hybrid
all_four || { cat "$tmp"/hybrid-?.log; fail "four ranks with hybrid"; }
paste -d ' ' <(losses "$tmp/two" | sed -E 's/.*"loss":([^,]*),.*/\1/') <(losses "$tmp/hybrid" | sed -E 's/.*"loss":([^,]*),.*/\1/') |
	awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > max) max = d; n++ } END { printf "hybrid: %d steps, largest difference of the losses %.2e\n", n, max; exit !(n == '$steps' && max <= 1e-5) }' ||
	fail "hybrid and ddp differ"
four hybrid-cut
# Killed when its first checkpoint is there. On a machine where it gets to its end before that, what follows the checkpoint is removed.
# shellcheck disable=SC2086 # a list of processes
while kill -0 ${started##* } 2>/dev/null && [ ! -d "$tmp/hybrid-cut/checkpoint-5" ]; do sleep 0.01; done
# shellcheck disable=SC2086 # a list of processes
kill -9 $started 2>/dev/null
for p in $started; do wait "$p"; done 2>/dev/null
find "$tmp/hybrid-cut" -name 'checkpoint-*' ! -name checkpoint-5 -prune -exec rm -r {} +
rm -f "$tmp/hybrid-cut/model.safetensors"
rm -rf "$tmp/meet-hybrid-cut"
attempt=2
four hybrid-cut
all_four || { cat "$tmp"/hybrid-cut-?.log; fail "four ranks with hybrid, resumed"; }
grep -q '^resuming from .*checkpoint-5' "$tmp/hybrid-cut-0.log" || { cat "$tmp/hybrid-cut-0.log"; fail "hybrid: not resumed"; }
unset attempt
diff <(losses "$tmp/hybrid") <(losses "$tmp/hybrid-cut") >"$tmp/diff" || { head -5 "$tmp/diff"; fail "hybrid, resumed: other losses"; }
cmp -s "$tmp/hybrid/model.safetensors" "$tmp/hybrid-cut/model.safetensors" || fail "hybrid, resumed: other weights"
echo "hybrid: killed and resumed, the same bits"
ranks=2

json dies "$tmp/dies" '"max_steps": 100000, "accumulation": 3'
strategy dies zero3
more="TORCHELASTIC_ERROR_FILE=$tmp/dies-error.json"
pair dies
more=
while kill -0 "$rank0" 2>/dev/null && [ "$(lines "$tmp/dies")" -lt 5 ]; do sleep 0.01; done
began=$(date +%s%N)
kill -9 "$rank1" && wait "$rank1" 2>/dev/null
# shellcheck disable=SC2154 # set by start_rank
wait "$rank0"
status=$?
took=$((($(date +%s%N) - began) / 1000000))
[ $status = 1 ] && grep -q '^error: ' "$tmp/dies-0.log" || { show dies; fail "zero3: the other rank ended with status $status"; }
echo "zero3: the other rank ended $took ms later: $(grep '^error: ' "$tmp/dies-0.log")"
grep -q '"extraInfo":{"lost_peer":true}' "$tmp/dies-error.json" || fail "zero3: the other rank does not say that it has lost a peer"
[ $took -lt "${RANKS_END_MS:-3000}" ] || fail "zero3: the other rank took $took ms"

# A full disk on one of the nodes, emulated by a limit on the size of files: one rank at least names rank and file, and another cause than that, or
# the loss of this rank, is named by none.
json full "$tmp/full" '"max_steps": 100000' '"save_steps": 5'
strategy full zero3
mkdir -p "$tmp/meet-full"
for rank in 0 1; do
	more="TORCHELASTIC_ERROR_FILE=$tmp/full-error-$rank.json"
	start_rank full $rank
done
more=
while kill -0 "$rank0" 2>/dev/null && [ ! -d "$tmp/full/checkpoint-5" ]; do sleep 0.01; done
prlimit --pid "$rank1" --fsize=4096 # its error file is smaller
if both; then show full; fail "a rank that cannot save goes on"; fi
for rank in 0 1; do
	grep -q '"rank 1 on node .*File too large.*"lost_peer":false\|"lost_peer":true' "$tmp/full-error-$rank.json" || { show full; fail "rank $rank has lost the cause: $(cat "$tmp/full-error-$rank.json")"; }
done
grep -qh 'File too large' "$tmp"/full-error-?.json || { show full; fail "no rank names the full disk"; }
grep -h '^error: ' "$tmp/full-0.log" "$tmp/full-1.log"

# The measured times, and the rank for which the others wait: rank 1, which is stopped repeatedly.
json slowest "$tmp/slowest" '"max_steps": 100000'
pair slowest
while kill -0 "$rank0" 2>/dev/null && [ "$(lines "$tmp/slowest")" -lt 5 ]; do sleep 0.01; done
# With NCCL the GPU waits, not the process: this is not measured.
measured=$(grep -c '"communication_seconds"' "$tmp/slowest/metrics.jsonl")
while [ "$measured" != 0 ] && kill -0 "$rank0" 2>/dev/null; do
	kill -STOP "$rank1" && sleep 0.3 && kill -CONT "$rank1"
	# The 300 ms count for rank 1, unless it was stopped while it waited itself: then try again.
	! grep -Eq '"slowest_rank":1,"slowest_node":"[^"]+","slowest_seconds":0\.[2-9]' "$tmp/slowest/metrics.jsonl" || break
	sleep 0.05
done
kill -TERM "$rank1"
# shellcheck disable=SC2154 # set by start_rank
wait "$rank0" "$rank1"
[ "$measured" = 0 ] || grep -E '"communication_seconds":0\.[2-9]' "$tmp/slowest/metrics.jsonl" | grep -q '"step_seconds":0\.[2-9]' || { tail -3 "$tmp/slowest/metrics.jsonl"; fail "rank 0 does not say that it waited"; }
grep -Eo '"slowest_rank":1,.*"slowest_seconds":0\.[2-9][0-9]*' "$tmp/slowest/metrics.jsonl" | head -1 || true
[ "$measured" != 0 ] || grep -q nccl "$tmp/slowest-0.log" || fail "nothing of the waiting is measured"

pair cut
while kill -0 "$rank0" 2>/dev/null && [ "$(lines "$tmp/cut")" -lt 31 ]; do sleep 0.01; done
began=$(date +%s%N)
kill -9 "$rank1" && wait "$rank1" 2>/dev/null
# shellcheck disable=SC2154 # set by start_rank
wait "$rank0"
status=$?
took=$((($(date +%s%N) - began) / 1000000))
[ $status = 1 ] || { show cut; fail "the other rank ended with status $status"; }
grep -q '^error: ' "$tmp/cut-0.log" || { show cut; fail "the other rank has no word on it"; }
echo "the other rank ended $took ms later: $(grep '^error: ' "$tmp/cut-0.log")"
[ $took -lt "${RANKS_END_MS:-3000}" ] || fail "the other rank took $took ms"
# Rank 1 runs as on a machine without the output directory of rank 0.
attempt=2
sed "s|\"dir\": \"[^\"]*\"|\"dir\": \"$tmp/elsewhere\"|" "$tmp/cut.json" >"$tmp/apart.json"
start_rank cut 0
start_rank cut 1 apart
both || { show cut; fail "two ranks, resumed"; }
diff <(losses "$tmp/two") <(losses "$tmp/cut") || fail "two ranks, resumed: other losses"
cmp -s "$tmp/two/model.safetensors" "$tmp/cut/model.safetensors" || fail "two ranks, resumed: other weights"
echo "two ranks resume bitwise"

# A signal to one rank stops both after the same step.
json stop "$tmp/stop" '"max_steps": 100000' '"save_steps": 100000' "$data"
attempt=1
pair stop
while kill -0 "$rank0" 2>/dev/null && [ "$(lines "$tmp/stop")" -lt 5 ]; do sleep 0.01; done
kill -TERM "$rank1"
# shellcheck disable=SC2154 # set by start_rank
wait "$rank1"; s1=$?
# shellcheck disable=SC2154 # set by start_rank
wait "$rank0"; s0=$?
[ $s0 = 143 ] && [ $s1 = 143 ] || { show stop; fail "SIGTERM to one of two: $s0 and $s1"; }
[ -d "$tmp/stop/checkpoint-$(lines "$tmp/stop")" ] || { show stop; fail "SIGTERM to one of two: no checkpoint"; }
echo "a stopped rank stops both"

# Writing a checkpoint takes longer than the timeout of collectives.
if ${CC:-cc} -shared -fPIC -O1 -D_GNU_SOURCE -o "$tmp/slow_write.so" "$src/tests/engine/slow_write.c" -ldl 2>/dev/null; then
	json slow "$tmp/slow" '"max_steps": 2' '"save_steps": 1'
	sed -i 's|"train": {|"parallel": {"timeout": '"${RANKS_TIMEOUT:-1}"'}, &|' "$tmp/slow.json"
	more="LD_PRELOAD=$tmp/slow_write.so SLOW_WRITE_MS=$((50 * ${RANKS_TIMEOUT:-1}))"
	pair slow
	both || { show slow; fail "two ranks with a slow disk"; }
	grep "^saved " "$tmp/slow-0.log"
	echo "a slow disk is no stall"
else
	echo "no compiler: the test of a slow disk is skipped"
fi
