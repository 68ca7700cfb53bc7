# SPDX-License-Identifier: Apache-2.0
# For the tests of the tasks that learn from rewards, which source it with $task, the members $of_group that each configuration has in the task's group, the number
# $steps of its steps, and $saved, those of the group output in a run that is compared with transformers; where LIKE="NAME…" is set, nothing but that is to be done.
. "$(dirname "$0")/worker.sh"
[ -x "${DTRAIN_TEST_PYTHON:-}" ] || { echo "no Python with transformers: set DTRAIN_TEST_PYTHON"; exit 77; }
# shellcheck disable=SC2154 # set by the scripts that source it
python() { OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$DTRAIN_TEST_PYTHON" -W ignore "$src/tests/engine/$task.py" "$@"; }
python make "$src/tests/engine/bytes" "$tmp" || fail "make"

rate=0.002
# policy NAME MODEL GROUP [TRAIN [OUTPUT]]: a configuration; the groups' members are added.
# shellcheck disable=SC2154
policy() {
	cat >"$tmp/$1.json" <<-END
		{"task": "$task", "directory": "$tmp", "model": {"path": "$tmp/$2"},
		 "data": {"path": ["prompts.jsonl"], "template": "default", "max_length": 96, "cache_dir": "$tmp/cache"},
		 "train": {"learning_rate": $rate, "schedule": "constant", "weight_decay": 0, "micro_batch": 2, "accumulation": 4, "max_steps": $steps, "precision": "fp32", "seed": 7${4:+, $4}},
		 "$task": {"reward": ["python3", "$src/tests/engine/reward_program.py", "$tmp/$1.asked"], $of_group${3:+, $3}},
		 "output": {"dir": "$tmp/$1-out", "log_steps": 1, "save_steps": 0${5:+, $5}}}
	END
}
compared=
# shellcheck disable=SC2154
like() { # NAME MODEL GROUP TRAIN SETTINGS…: as with transformers
	case " ${LIKE:-$1} " in *" $1 "*) ;; *) return ;; esac
	compared="$compared $1"
	policy "$1" "$2" "$3" "$4" "$saved"
	run "$1" || { cat "$tmp/$1.log"; fail "$1"; }
	# A GPU says that heads of 16 are slow.
	! grep warning "$tmp/$1.log" | grep -v 'tensor cores' || fail "$1: a warning"
	echo "$tmp" $rate "$1" "$2" "${@:5}" >>"$tmp/replays"
}
# After the last of these.
all_alike() {
	[ ! -e "$tmp/replays" ] || python replays "$tmp/replays" || fail "the first of $compared that is not above: not as transformers"
	[ -n "${LIKE:-}" ] || return 0
	[ "$(wc -w <<<"$compared")" = "$(wc -w <<<"$LIKE")" ] || fail "LIKE=\"$LIKE\": there are only$compared of these"
	exit 0
}
same_completions() { # A B: what was asked, in whatever order
	diff <(jq -c '[.row, .completion_ids]' "$tmp/$1.asked" | sort) <(jq -c '[.row, .completion_ids]' "$tmp/$2.asked" | sort) >/dev/null || fail "$2: other completions than $1"
}
near_policy() { # A B [STEPS]: losses, gradient norms and, with values, the part of the returns that these explain
	paste -d ' ' <(losses "$tmp/$1-out" | jq -r '"\(.loss) \(.grad_norm) \(.["val/explained_variance"] // 0)"') <(losses "$tmp/$2-out" | jq -r '"\(.loss) \(.grad_norm) \(.["val/explained_variance"] // 0)"') |
		awk '{ d = $1 - $4; if (d < 0) d = -d; if (d > max) max = d; g = ($2 - $5) / $2; if (g < 0) g = -g; if (g > norm) norm = g; e = $3 - $6; if (e < 0) e = -e; if (e > of) of = e; n++ }
			END { printf "'"$2"': largest difference of the losses %.1e, of the gradient norms %.1e of them, of what values explain %.1e\n", max, norm, of; exit !(n == '"${3:-$steps}"' && max <= 1e-5 && norm <= 1e-3 && of <= 1e-4) }' || fail "$2: other losses than $1"
}
