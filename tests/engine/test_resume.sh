#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A run that is killed with SIGKILL at random steps, and one that is stopped with SIGTERM, have after resuming bitwise the same losses and
# weights as an uninterrupted run.
. "$(dirname "$0")/worker.sh"
steps=120
last_step() { (cd "$1" && ls -d checkpoint-* 2>/dev/null) | grep -v tmp | sed 's/.*-//' | sort -n | tail -1; }

same() { # A B WHAT
	diff <(losses "$1") <(losses "$2") >"$tmp/diff" || { head -5 "$tmp/diff"; fail "$3: other losses"; }
	cmp -s "$1/model.safetensors" "$2/model.safetensors" || fail "$3: other weights"
	for f in rank-00000-of-00001.safetensors rank-00000-of-00001.json state.json; do
		cmp -s "$1/checkpoint-$steps/dtrain/$f" "$2/checkpoint-$steps/dtrain/$f" || fail "$3: other dtrain/$f"
	done
}

# Kills the run four times, each time at a later step; returns 1 where it ended before.
kill_rounds() {
	local round at status
	unset attempt
	for round in 1 2 3 4; do
		at=$((RANDOM % 25 + round * 25 - 24))
		start cut "cut-$round"
		while kill -0 "$pid" 2>/dev/null && [ "$(lines "$tmp/cut-$precision")" -lt "$at" ]; do sleep 0.01; done
		kill -9 "$pid" 2>/dev/null
		wait "$pid" 2>/dev/null
		status=$?
		[ $status = 0 ] && return 1
		[ $status = 137 ] || { cat "$tmp/cut-$round.log"; fail "$precision: round $round: exit status $status"; }
		echo "$precision: killed at $(lines "$tmp/cut-$precision") lines, newest checkpoint: $(last_step "$tmp/cut-$precision")"
		attempt=2 # as the service would start it again
	done
}

# "none": bf16 without a master copy, rounded stochastically
for precision in fp32 none bf16; do
	train="\"max_steps\": $steps, \"accumulation\": 2, \"precision\": \"$precision\", \"weight_decay\": 0.1"
	[ $precision != none ] || train="${train/none/bf16}, \"master\": \"none\""
	output='"save_steps": 6, "keep": 2'
	data='"eval_fraction": 0.1'
	json whole "$tmp/whole-$precision" "$train" "$output" "$data"
	json cut "$tmp/cut-$precision" "$train" "$output" "$data"
	run whole || { cat "$tmp/whole.log"; fail "$precision: the run left alone"; }
	[ "$(lines "$tmp/whole-$precision")" = $steps ] || fail "$precision: $(lines "$tmp/whole-$precision") lines of metrics for $steps steps"
	# shellcheck disable=SC2012 # counts directories with plain names
	[ "$(ls -d "$tmp/whole-$precision"/checkpoint-* | wc -l)" = 2 ] || fail "keep = 2: $(ls "$tmp/whole-$precision")"

	# On a loaded machine the run may end before it is killed: then everything is repeated.
	tries=0
	until kill_rounds; do
		tries=$((tries + 1))
		[ $tries -lt 10 ] || fail "$precision: the run ended before it could be killed four times, in each of $tries tries"
		rm -rf "$tmp/cut-$precision"
	done
	attempt=2
	run cut cut-last || { cat "$tmp/cut-last.log"; fail "$precision: the run that was killed"; }
	unset attempt
	same "$tmp/whole-$precision" "$tmp/cut-$precision" "$precision, killed four times"
	masters=$(grep -c '"master\.' "$tmp/whole-$precision/checkpoint-$steps/dtrain/rank-00000-of-00001.safetensors")
	[ "$masters" = "$([ $precision = bf16 ] && echo 1 || echo 0)" ] || fail "$precision: $masters headers with master weights"
	[ -z "$(find "$tmp/cut-$precision" -name '*.tmp')" ] || fail "leftovers: $(find "$tmp/cut-$precision" -name '*.tmp')"
done

# SIGTERM: the worker finishes the step, writes a checkpoint, and ends with 143.
json stop "$tmp/stop" "$train" '"save_steps": 1000' "$data"
start stop
while kill -0 "$pid" 2>/dev/null && [ "$(lines "$tmp/stop")" -lt 9 ]; do sleep 0.01; done
kill -TERM "$pid"
wait "$pid"
status=$?
[ $status = 143 ] || { cat "$tmp/stop.log"; fail "SIGTERM: exit status $status"; }
at=$(last_step "$tmp/stop")
[ "$at" = "$(lines "$tmp/stop")" ] || fail "SIGTERM: checkpoint-$at after $(lines "$tmp/stop") steps"
json stop "$tmp/stop" "$train" '"save_steps": 1000, "resume": "must"' "$data"
run stop || { cat "$tmp/stop.log"; fail "SIGTERM: the resumed run"; }
diff <(losses "$tmp/whole-bf16" | sed 's/,"eval_loss.*/}/') <(losses "$tmp/stop" | sed 's/,"eval_loss.*/}/') || fail "SIGTERM: other losses"
cmp -s "$tmp/whole-bf16/model.safetensors" "$tmp/stop/model.safetensors" || fail "SIGTERM: other weights"

# A run whose number of steps is reduced below the step of its checkpoint prints a warning, saves the model, and keeps its checkpoints.
json stop "$tmp/stop" "\"max_steps\": 3, \"accumulation\": 2" '"save_steps": 1000'
before=$(ls -d "$tmp/stop"/checkpoint-*)
run stop || { cat "$tmp/stop.log"; fail "a run made shorter"; }
grep -q "^warning: .*nothing is left to train" "$tmp/stop.log" || { cat "$tmp/stop.log"; fail "a run made shorter: no word of it"; }
[ "$before" = "$(ls -d "$tmp/stop"/checkpoint-*)" ] || fail "a run made shorter: $(ls "$tmp/stop")"
echo "resumed runs are bitwise the same"

# Without a precision in the run file the device decides, but a resumed run keeps its precision.
json auto "$tmp/auto" '"max_steps": 2, "precision": "auto"' '"save_steps": 1'
run auto || { cat "$tmp/auto.log"; fail "precision auto"; }
grep -Eq '^precision: (bf16|fp32) \(auto: .*(multiplies it|no bf16 arithmetic)\)$' "$tmp/auto.log" || { cat "$tmp/auto.log"; fail "precision auto: it does not say which"; }
for precision in fp32 bf16; do
	json first "$tmp/auto-$precision" "\"max_steps\": 2, \"precision\": \"$precision\"" '"save_steps": 1'
	run first || { cat "$tmp/first.log"; fail "$precision, to be resumed"; }
	json "then" "$tmp/auto-$precision" '"max_steps": 3, "precision": "auto"' '"save_steps": 1'
	run "then" || { cat "$tmp/then.log"; fail "$precision, resumed with auto"; }
	grep -q "^precision: $precision (auto: as the checkpoint)$" "$tmp/then.log" || { cat "$tmp/then.log"; fail "$precision: resumed in another precision"; }
	grep -q "\"precision\": \"$precision\"" "$tmp/auto-$precision/checkpoint-3/dtrain/state.json" || fail "$precision: not saved with its precision"
done
echo "auto keeps the precision of a checkpoint"

# A checkpoint has the moments that the optimizer keeps, and no others: of plain sgd there is no file of state at all. Resumed from the
# middle, each goes on as if it had not been stopped.
for case in plain,sgd,0,- sgd,sgd,0.9,m lion,lion,0.9,m adafactor,adafactor,0.9,v muon,muon,0.9,mv; do
	IFS=, read -r name optimizer momentum want <<<"$case"
	train="\"max_steps\": 6, \"optimizer\": \"$optimizer\", \"momentum\": $momentum"
	json "$name" "$tmp/$name" "$train" '"save_steps": 3, "keep": 9'
	run "$name" || { cat "$tmp/$name.log"; fail "$name"; }
	cp -r "$tmp/$name" "$tmp/$name-cut"
	rm -r "$tmp/$name-cut/checkpoint-6" "$tmp/$name-cut/model.safetensors"
	json "$name-cut" "$tmp/$name-cut" "$train" '"save_steps": 3, "keep": 9, "resume": "must"'
	attempt=2 run "$name-cut" || { cat "$tmp/$name-cut.log"; fail "$name: the resumed run"; }
	diff <(losses "$tmp/$name") <(losses "$tmp/$name-cut") >"$tmp/diff" || { head -5 "$tmp/diff"; fail "$name: other losses"; }
	cmp -s "$tmp/$name/model.safetensors" "$tmp/$name-cut/model.safetensors" || fail "$name: other weights"
	file="$tmp/$name/checkpoint-6/dtrain/rank-00000-of-00001.safetensors"
	kept=$({ [ ! -e "$file" ] || head -c 100000 "$file"; } | grep -ao '"[mv]\.' | sort -u | tr -dc mv)
	[ "${kept:--}" = "$want" ] || fail "$name: the checkpoint has the moments '$kept', not '$want'"
done
echo "checkpoints have the moments that there are"
