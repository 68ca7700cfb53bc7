#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A run that is stopped again and again, and goes on with another number of ranks and another strategy each time, has the losses of a run that
# was left alone: the same batches, in the same order, each once, and sums that differ in the last bits alone. With another batch it goes on in the epoch
# where it was. Killed while a checkpoint is being written, it resumes from one. CHAINS=N, KILLS=N, LOCAL_KILLS=N (with a directory on each
# node): more of them.
. "$(dirname "$0")/worker.sh"
# Number of ranks, micro_batch and accumulation: each is a global batch of 12.
# shellcheck disable=SC2034 # pick takes the names of these two
splits=("1 2 6" "2 2 3" "3 2 2" "4 1 3")
# shellcheck disable=SC2034
strategies=(ddp zero1 zero2 zero3 hybrid)
steps=30
pick() { eval "echo \"\${$1[RANDOM % \${#$1[@]}]}\""; }

newest() { (cd "$1" 2>/dev/null && ls -d checkpoint-*) 2>/dev/null | grep -v tmp | sed 's/.*-//' | sort -n | tail -1; }

# start_ranks NAME OUTPUT RANKS MICRO ACCUMULATION STRATEGY: starts the ranks of the next attempt; their processes are in `pid`. $more: more
# variables of the environment. $apart: ranks but the first run as on a machine without its output directory. $nodes: the node of each rank,
# which has an output directory of its own, OUTPUT-NODE.
attempt=0
more=
apart=
nodes=()
save_steps=7
declare -a pid
start_ranks() {
	local name=$1 ranks=$3 rank config node parallel="\"strategy\": \"$6\""
	local resources=
	[ "$6" != hybrid ] || parallel="$parallel, \"shard_degree\": 2" resources="\"resources\": {\"devices_per_node\": $3}, "
	attempt=$((attempt + 1))
	pid=()
	json "$name" "$2" "${train:-"\"max_steps\": $steps"}, \"accumulation\": $5, \"micro_batch\": $4" "\"save_steps\": $save_steps, \"keep\": 3"
	sed -i 's|"train": {|"parallel": {'"$parallel"'}, '"$resources"'&|' "$tmp/$name.json"
	mkdir "$tmp/meet-$attempt"
	cp "$tmp/$name.json" "$tmp/$name-other.json"
	[ -z "$apart" ] || sed -i 's|"output": {|&"gather": true, |' "$tmp/$name.json" "$tmp/$name-other.json"
	[ -z "$apart" ] || sed -i "s|\"dir\": \"[^\"]*\"|\"dir\": \"$tmp/elsewhere\"|" "$tmp/$name-other.json"
	for ((rank = 0; rank < ranks; rank++)); do
		config=$tmp/$name$([ "$rank" = 0 ] || echo -other).json node=n0
		if [ ${#nodes[@]} != 0 ]; then
			node=${nodes[rank]} config=$tmp/$name-${nodes[rank]}.json
			sed "s|\"dir\": \"[^\"]*\"|\"dir\": \"$2-$node\"|" "$tmp/$name.json" >"$config"
		fi
		# shellcheck disable=SC2086 # $more is a list of assignments
		env -i $more PATH="$PATH" OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive DTRAIN_ATTEMPT=$attempt DTRAIN_NODE=$node RANK=$rank WORLD_SIZE="$ranks" LOCAL_RANK=$rank \
			DTRAIN_RENDEZVOUS_DIR="$tmp/meet-$attempt" DTRAIN_CONFIG="$config" "$worker" >"$tmp/$name-$rank.log" 2>&1 &
		pid[rank]=$!
		pids="$pids $!"
	done
}

# go NAME OUTPUT RANKS MICRO ACCUMULATION STRATEGY [STOP]: starts the ranks, and waits for their end. STOP: after so many lines of metrics one
# of them gets SIGTERM.
go() {
	local name=$1 out=$2${nodes:+-${nodes[0]}} ranks=$3 rank status stopped=0
	start_ranks "$@"
	if [ -n "${7:-}" ]; then
		while kill -0 "${pid[0]}" 2>/dev/null && [ "$(lines "$out")" -lt "$7" ]; do sleep 0.01; done
		kill -TERM "${pid[RANDOM % ranks]}" 2>/dev/null
		stopped=143
	fi
	for ((rank = 0; rank < ranks; rank++)); do
		wait "${pid[rank]}"
		status=$?
		[ $status = $stopped ] || [ $status = 0 ] || { cat "$tmp/$name"-*.log; fail "$name: rank $rank of $ranks ($6) ended with $status"; }
		! grep -E '^(warning: .*other order|error: )' "$tmp/$name-$rank.log" || fail "$name: rank $rank"
	done
}
# The largest difference of the losses of two runs, each of `steps` lines.
compare() { # A B LIMIT
	paste -d ' ' <(losses "$1" | sed -E 's/.*"loss":([^,]*),.*/\1/') <(losses "$2" | sed -E 's/.*"loss":([^,]*),.*/\1/') |
		awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > max) max = d; n++ } END { printf "%d steps, largest difference of the losses %.2e\n", n, max; exit !(n == '$steps' && max <= '"$3"') }'
}

# Where a run of `steps` ended: two epochs, of which the last step has the rows that are left.
position() { grep -E '"(examples|tokens|step)":' "$1/checkpoint-$steps/dtrain/state.json"; }

go whole "$tmp/whole" 1 2 6 ddp
pairs=0
for ((chain = 0; chain < ${CHAINS:-1}; chain++)); do
	at=0
	before=
	while [ "$at" -lt "$steps" ]; do
		now=$before
		while [ "$now" = "$before" ]; do
			read -r ranks micro accumulation <<<"$(pick splits)"
			strategy=$(pick strategies)
			[ "$strategy" != hybrid ] || [ "$ranks" = 4 ] || strategy=zero3
			[ "$ranks" -gt 1 ] || strategy=ddp
			now="$ranks $strategy"
		done
		[ -z "$before" ] || pairs=$((pairs + 1))
		before=$now
		at=$((at + 7 + RANDOM % 8))
		if [ $at -lt $steps ]; then
			go chain "$tmp/chain-$chain" "$ranks" "$micro" "$accumulation" "$strategy" $at
		else
			go chain "$tmp/chain-$chain" "$ranks" "$micro" "$accumulation" "$strategy"
		fi
		at=$(lines "$tmp/chain-$chain")
		echo "$ranks ranks, $strategy: to step $at"
	done
	compare "$tmp/whole" "$tmp/chain-$chain" "1e-6" || fail "chain $chain: other losses"
	diff <(position "$tmp/whole") <(position "$tmp/chain-$chain") || fail "chain $chain: another number of examples"
	rm -r "$tmp/chain-$chain"
done
echo "resumed with other ranks or strategies: $pairs pairs"

# Where neither ranks nor strategy change, nothing does: bitwise.
go left "$tmp/left-zero3" 2 2 3 zero3
go cut "$tmp/cut-zero3" 2 2 3 zero3 12
go cut "$tmp/cut-zero3" 2 2 3 zero3
diff <(losses "$tmp/left-zero3") <(losses "$tmp/cut-zero3") || fail "zero3: other losses"
cmp "$tmp/left-zero3/model.safetensors" "$tmp/cut-zero3/model.safetensors" || fail "zero3: other weights"
apart=yes
go apart "$tmp/apart-zero3" 2 2 3 zero3 12
go apart "$tmp/apart-zero3" 2 2 3 zero3
apart=
diff <(losses "$tmp/left-zero3") <(losses "$tmp/apart-zero3") || fail "zero3 without a shared directory: other losses"
cmp "$tmp/left-zero3/model.safetensors" "$tmp/apart-zero3/model.safetensors" || fail "zero3 without a shared directory: other weights"
[ ! -e "$tmp/elsewhere" ] || fail "zero3 without a shared directory: $(ls "$tmp/elsewhere")"

# Each node has a directory of its own, where the files of its ranks stay. The ranks go on in another order.
nodes=(n1 n2)
go local "$tmp/local-zero3" 2 2 3 zero3 12
[ -z "$(find "$tmp/local-zero3-n1" -name 'rank-00001-of-00002.safetensors')" ] || fail "each node its own directory: a file of rank 1 lies with rank 0"
nodes=(n2 n1)
go local "$tmp/local-zero3" 2 2 3 zero3
diff <(losses "$tmp/left-zero3") <(losses "$tmp/local-zero3-n1" && losses "$tmp/local-zero3-n2") || fail "each node its own directory: other losses"
cmp "$tmp/left-zero3/model.safetensors" "$tmp/local-zero3-n2/model.safetensors" || fail "each node its own directory: other weights"
# On other nodes the file that is missing is named, and the node that has it.
nodes=(n1 n3)
start_ranks local "$tmp/local-zero3" 2 2 3 zero3
! wait "${pid[0]}" || fail "each node its own directory: resumes without a node"
wait "${pid[1]}"
grep -E "^error: .*/checkpoint-30/dtrain/rank-00000-of-00002.json is on node n2, where rank 0 saved it, and this run has no rank there" "$tmp/local-0.log" ||
	{ cat "$tmp"/local-*.log; fail "each node its own directory: the missing node is not named"; }
nodes=()
echo "with a directory on each node, a run that goes on with its ranks in another order has the same bits"
echo "resumed with the same ranks, a run has the same bits"

# Another batch: 3 epochs end after the same examples.
rows=$(grep -o 'in [0-9]* rows' "$tmp/left-0.log" | grep -o '[0-9]*')
train='"epochs": 3'
go batch "$tmp/batch" 2 1 2 zero1 9
at=$(lines "$tmp/batch")
go batch "$tmp/batch" 3 2 1 ddp
grep -o "epoch 1 goes on after row $((at * 4)) of $rows; [0-9]* steps in all" "$tmp/batch-0.log" || { cat "$tmp/batch-0.log"; fail "another batch: not where it was"; }
want=$((at + (rows - at * 4 + 5) / 6 + 2 * ((rows + 5) / 6)))
[ "$(lines "$tmp/batch")" = $want ] || fail "another batch: $(lines "$tmp/batch") steps, not $want"
grep -q "\"examples\": $((3 * rows))," "$tmp/batch/checkpoint-$want/dtrain/state.json" || fail "another batch: $(cat "$tmp/batch/checkpoint-$want/dtrain/state.json")"
grep -q '"epoch": 3.0,' "$tmp/batch/trainer_state.json" || fail "another batch: not 3 epochs"

# Ranks are killed at random moments while they save; the disk is slow, so that most moments are such.
kills=${KILLS:-3}
local_kills=${LOCAL_KILLS:-2}
# kill_while_saving NAME KILLS: the output is in $tmp/NAME, with -NODE for $nodes; $first is where rank 0 writes.
kill_while_saving() {
	local name=$1 first=$tmp/$1${nodes:+-${nodes[0]}} kill saved victims tmps
	more="LD_PRELOAD=$tmp/slow_write.so SLOW_WRITE_MS=4"
	for ((kill = 0; kill < $2; kill++)); do
		start_ranks "$name" "$tmp/$name" 2 2 3 zero3
		saved=$(newest "$first")
		while kill -0 "${pid[0]}" 2>/dev/null && [ "$(newest "$first")" = "$saved" ] && ! ls -d "$first"/checkpoint-*."$attempt".tmp >/dev/null 2>&1; do sleep 0.01; done
		sleep "0.$(printf %03d $((RANDOM % 250)))"
		victims=$((RANDOM % 3))
		[ $victims = 1 ] || kill -9 "${pid[0]}" 2>/dev/null
		[ $victims = 0 ] || kill -9 "${pid[1]}" 2>/dev/null
		wait "${pid[@]}" 2>/dev/null
		! grep -E "^(warning|error): .*(checkpoint-[0-9]*/|older checkpoint)" "$tmp/$name"-*.log || fail "$name: after kill $kill"
		saved=$(newest "$first")
		tmps=$(find "$first" -maxdepth 1 -name '*.tmp' -printf '%f ')
		[ "$2" -gt 10 ] || echo "$name: newest checkpoint $saved, left ${tmps:-nothing}"
	done
	more=
	go "$name" "$tmp/$name" 2 2 3 zero3
	diff <(losses "$tmp/calm") <(losses "$first") || fail "$name: other losses"
	cmp "$tmp/calm/model.safetensors" "$first/model.safetensors" || fail "$name: other weights"
	[ -z "$(find "$tmp/$name"* -name '*.tmp')" ] || fail "leftovers: $(find "$tmp/$name"* -name '*.tmp')"
	echo "killed $2 times while it saved${nodes:+ to a directory on each node}, a run has the same bits"
}
if ${CC:-cc} -shared -fPIC -O1 -D_GNU_SOURCE -o "$tmp/slow_write.so" "$src/tests/engine/slow_write.c" -ldl 2>/dev/null; then
	steps=$((10 + 2 * (kills > local_kills ? kills : local_kills)))
	train="\"max_steps\": $steps"
	go calm "$tmp/calm" 2 2 3 zero3
	save_steps=1
	kill_while_saving killed "$kills"
	nodes=(n1 n2)
	kill_while_saving scattered "$local_kills"
else
	echo "no compiler: nothing is killed while it saves"
fi
