#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# State in the host's memory changes no bit: runs with parallel.offload have the losses and the weights of a run without, and each goes on from
# a checkpoint of another.
. "$(dirname "$0")/worker.sh"
steps=12
# train NAME RANKS PARALLEL [STOP]: trains with these members of "parallel", to $tmp/NAME. STOP: until so many steps are reported.
attempt=0
train() {
	local ranks=$2 rank status stopped=0
	local -a pid
	attempt=$((attempt + 1))
	mkdir "$tmp/meet-$attempt"
	json "$1" "$tmp/$1" "\"max_steps\": $steps, \"accumulation\": 2" '"save_steps": 5'
	sed -i 's|"train": {|"parallel": {'"$3"'}, &|' "$tmp/$1.json"
	for ((rank = 0; rank < ranks; rank++)); do
		env -i PATH="$PATH" OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive DTRAIN_ATTEMPT=$attempt RANK=$rank WORLD_SIZE="$ranks" LOCAL_RANK=$rank \
			DTRAIN_RENDEZVOUS_DIR="$tmp/meet-$attempt" DTRAIN_CONFIG="$tmp/$1.json" "$worker" >"$tmp/$1-$rank.log" 2>&1 &
		pid[rank]=$!
		pids="$pids $!"
	done
	if [ -n "${4:-}" ]; then
		while kill -0 "${pid[0]}" 2>/dev/null && [ "$(lines "$tmp/$1")" -lt "$4" ]; do sleep 0.01; done
		kill -"${signal:-TERM}" "${pid[0]}"
		stopped=$([ "${signal:-TERM}" = KILL ] && echo 137 || echo 143)
	fi
	for ((rank = 0; rank < ranks; rank++)); do
		wait "${pid[rank]}"
		status=$?
		[ "$status" = "$stopped" ] || [ $status = 0 ] || { cat "$tmp/$1"-*.log; fail "$1: rank $rank ended with $status"; }
	done
}
same() { # NAME NAME
	diff <(losses "$tmp/$1") <(losses "$tmp/$2") || fail "$1 and $2: the losses differ"
	cmp "$tmp/$1/model.safetensors" "$tmp/$2/model.safetensors" || fail "$1 and $2: the weights differ"
}

train one 1 '"offload": "none"'
train all 1 '"offload": "all"'
same one all
train two 2 '"strategy": "zero3"'
train two-all 2 '"strategy": "zero3", "offload": "all"'
same two two-all
train cut 1 '"offload": "all"' 4
train cut 1 '"offload": "optimizer"' 9
train cut 1 '"offload": "none"'
same one cut
train two-cut 2 '"strategy": "zero3"' 6
train two-cut 2 '"strategy": "zero3", "offload": "all"'
same two two-cut
# State in a directory. A worker that is killed leaves nothing there.
mkdir "$tmp/nvme"
on_disk='"offload_dir": "'"$tmp/nvme"'"'
empty() { [ -z "$(ls -A "$tmp/nvme")" ] || fail "$1: left behind: $(ls -A "$tmp/nvme")"; }
train disk 1 '"offload": "optimizer", '"$on_disk"
same one disk
empty "the end"
grep "^optimizer state: .* of each rank in $tmp/nvme" "$tmp/disk-0.log" || fail "disk: nothing is said of it"
train two-disk 2 '"strategy": "zero3", "offload": "all", '"$on_disk"
same two two-disk
signal=KILL train killed 1 '"offload": "all", '"$on_disk" 7
empty "a kill"
train killed 1 '"offload": "none"'
same one killed
train back 1 '"offload": "none"' 6
train back 1 '"offload": "all", '"$on_disk"
same one back

# A disk that is too small is named at the start, before the first step.
refused() { # NAME DIRECTORY PATTERN
	json "$1" "$tmp/$1-out" "\"max_steps\": $steps"
	sed -i 's|"train": {|"parallel": {"offload": "optimizer", "offload_dir": "'"$2"'"}, &|' "$tmp/$1.json"
	! run "$1" || fail "$1: the run has not failed"
	grep -E "^error: .*$3" "$tmp/$1.log" || { cat "$tmp/$1.log"; fail "$1: another error"; }
	[ "$(lines "$tmp/$1-out")" = 0 ] || fail "$1: it has trained"
}
refused nowhere "$tmp/nowhere" "parallel.offload_dir $tmp/nowhere: cannot make a file there: No such file or directory"
if unshare -m true 2>/dev/null; then
	export -f refused run start json lines fail
	mkdir "$tmp/small"
	# shellcheck disable=SC2016 # the shell inside expands them
	src=$src tmp=$tmp worker=$worker steps=$steps unshare -m bash -c '
		mount -t tmpfs -o size=64k none "$tmp/small" && refused small "$tmp/small" "parallel.offload_dir $tmp/small: cannot reserve .* for the optimizer.s state, of .* that are free: No space left on device"' ||
		fail "a small disk"
else
	echo "no file system of its own: the test of a small disk is skipped"
fi
echo "PASSED"
