#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Knowledge distillation: a student learns from teachers of other families as with transformers' models, in pretraining and in fine-tuning; two ranks have
# the losses of one rank; a resumed run, and one that recomputes, have the same bits; every precision and adapters learn from a teacher.
. "$(dirname "$0")/worker.sh"
[ -x "${DTRAIN_TEST_PYTHON:-}" ] || { echo "no Python with transformers: set DTRAIN_TEST_PYTHON"; exit 77; }
rows=$(readlink -f "${DTRAIN_BUILD:-.}/tests/engine/rows_dump")
[ -x "$rows" ] || { echo "no tests/engine/rows_dump: set DTRAIN_BUILD to a build directory"; exit 77; }
python() { OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$DTRAIN_TEST_PYTHON" -W ignore "$src/tests/engine/distillation.py" "$@"; }
python make "$src/tests/engine/bytes" "$tmp" || fail "make"

# As in transformers: of text whose every token counts, and of the answers of conversations.
rate=0.003 compared=()
like() { # NAME STEPS TASK FORMAT TEMPLATE FILE PACKING TEACHER WEIGHT TEMPERATURE
	cat >"$tmp/$1.json" <<-EOF
		{"task": "$3", "directory": "$tmp", "model": {"path": "$tmp/student"}, "distillation": {"teacher": "$tmp/$8", "weight": $9, "temperature": ${10}},
		 "data": {"path": ["$6"], "format": "$4", "template": "$5", "max_length": 96, "packing": $7, "cache_dir": "$tmp/cache"},
		 "train": {"learning_rate": $rate, "schedule": "constant", "weight_decay": 0, "micro_batch": 4, "max_steps": $2, "precision": "fp32", "seed": 7},
		 "output": {"dir": "$tmp/$1-out", "log_steps": 1, "save_steps": 0}}
	EOF
	run "$1" || { cat "$tmp/$1.log"; fail "$1"; }
	! grep warning "$tmp/$1.log" || fail "$1: a warning"
	"$rows" "$tmp/student" "$tmp/cache" "$4" "$5" 96 4 7 "$2" "$6" >"$tmp/$1.rows" || fail "rows_dump"
	compared+=("$1" "$8" "$9" "${10}")
}
text=(pretrain text default "$src/LICENSE" true) chats=(sft alpaca alpaca "$tmp/chats.json" false)
like text 20 "${text[@]}" teacher 0.5 2.0
like answers 20 "${chats[@]}" teacher 0.7 1.5
like whole 6 "${text[@]}" teacher 1.0 1.0
like capped 6 "${text[@]}" gemma2 0.6 0.8
like smaller 6 "${chats[@]}" gpt2 0.6 2.0
like experts 6 "${text[@]}" qwen3_moe 0.6 1.0
python compare "$tmp" $rate "${compared[@]}" || fail "not as transformers"
grep -q "^teacher: qwen3, $tmp/teacher$" "$tmp/text.log" || fail "the log does not name the teacher"

student() { # as json, with student and teacher
	json "$@"
	sed -i 's|"init": "[^"]*"|"path": "'"$tmp/student"'"|; s|"cache"|"cache-2"|' "$tmp/$1.json"
	more "$1" '"distillation": {"teacher": "'"$tmp/teacher"'"}'
}
student one "$tmp/one" '"max_steps": 20, "accumulation": 2' '"save_steps": 10'
run one || { cat "$tmp/one.log"; fail "one rank"; }
for s in ddp zero3; do
	student $s "$tmp/$s" '"max_steps": 20' '"save_steps": 0'
	more $s "\"parallel\": {\"strategy\": \"$s\"}"
	pair $s || { cat "$tmp/$s-0.log"; fail "$s"; }
	near one $s || fail "$s: other losses than one rank"
done
# Killed after a checkpoint, and resumed; computed again; from the host.
cp -r "$tmp/one" "$tmp/resumed"
sed "s|\"dir\": \"$tmp/one\"|\"dir\": \"$tmp/resumed\"|" "$tmp/one.json" >"$tmp/resumed.json"
rm -r "$tmp/resumed/checkpoint-20" "$tmp/resumed/model.safetensors"
attempt=2 run resumed || { cat "$tmp/resumed.log"; fail "resumed"; }
grep -q '^resuming from .*checkpoint-10' "$tmp/resumed.log" || fail "not resumed"
same_run one resumed
student again "$tmp/again" '"max_steps": 20, "accumulation": 2, "recompute": "full"' '"save_steps": 10'
more again '"parallel": {"offload": "all"}'
run again || { cat "$tmp/again.log"; fail "recomputed, with offload"; }
same_run one again
for precision in bf16 fp16 fp8; do
	student $precision "$tmp/$precision" '"max_steps": 20, "accumulation": 2' '"save_steps": 0'
	sed -i 's|"precision": "fp32"|"precision": "'$precision'"|' "$tmp/$precision.json"
	run $precision || { cat "$tmp/$precision.log"; fail "$precision"; }
	within one $precision 0.03 || fail "$precision: other losses than fp32"
done
student lora "$tmp/lora" '"max_steps": 20, "accumulation": 2' '"save_steps": 0'
more lora '"lora": {"rank": 4, "quantize": "nf4"}'
run lora || { cat "$tmp/lora.log"; fail "adapters"; }
loss_values lora | awk 'NR == 1 { first = $1 } { last = $1 } END { printf "adapters: losses %s to %s\n", first, last; exit !(last < first - 0.02) }' || fail "adapters: the loss does not fall"

# The model is its own teacher: nothing is left to learn from it.
student own "$tmp/own" '"max_steps": 3' '"save_steps": 0'
sed -i 's|"teacher": "[^"]*"|"teacher": "'"$tmp/student"'", "weight": 1.0|' "$tmp/own.json"
run own || { cat "$tmp/own.log"; fail "its own teacher"; }
loss_values own | awk '{ d = $1 < 0 ? -$1 : $1; if (d > max) max = d } END { printf "its own teacher: losses up to %.1e\n", max; exit !(NR == 3 && max < 1e-6) }' || fail "its own teacher: a loss"

# What is no such teacher is refused by the worker and by dtrain check, in the same words.
jq -n --arg dir "$tmp" --arg text "$src/LICENSE" -r '"task = \"pretrain\"; directory = \"\($dir)\"; model = { path = \"\($dir)/student\"; }; output = { dir = \"checked\"; };
	data = { path = [\"\($text)\"]; format = \"text\"; max_length = 200; };"' >"$tmp/check.conf"
check() { "${DTRAIN_BUILD:-.}/dtrain" check --set "distillation.teacher=$1" "$tmp/check.conf" 2>&1; }
refused() { # TEACHER WORDS
	student no "$tmp/no" '"max_steps": 3'
	sed -i 's|"teacher": "[^"]*"|"teacher": "'"$tmp/$1"'"|; s|"max_length": 64|"max_length": 200|' "$tmp/no.json"
	! run no || fail "$1 teaches"
	grep -q "^error: distillation.teacher: $2" "$tmp/no.log" || { cat "$tmp/no.log"; fail "what the worker says of $1"; }
	! check "$1" >"$tmp/said" || fail "check: $1 may teach"
	grep -q "distillation.teacher: $2" "$tmp/said" || { cat "$tmp/said"; fail "what check says of $1"; }
}
mkdir "$tmp/adapter"
echo '{}' >"$tmp/adapter/adapter_config.json"
cp -r "$tmp/teacher" "$tmp/tiny"
sed -i 's|"vocab_size": 300|"vocab_size": 200|' "$tmp/tiny/config.json"
refused none "cannot read .*none: No such file or directory"
refused adapter ".*adapter is an adapter, not a model"
refused reward ".*reward is a reward model"
refused student/config.json ".*student/config.json is not a directory"
refused stranger '.*the id [0-9]* is "[ab]" there, and "[ab]" in the tokenizer of the run'
refused gpt2 ".*gpt2 has 128 positions, fewer than data.max_length, which is 200"
student tiny "$tmp/tiny-out" '"max_steps": 3'
sed -i 's|"teacher": "[^"]*"|"teacher": "'"$tmp/tiny"'"|' "$tmp/tiny.json"
! run tiny || fail "a teacher with fewer ids teaches"
grep -q "^error: distillation.teacher: the tokenizer in $tmp/student has ids up to" "$tmp/tiny.log" || { cat "$tmp/tiny.log"; fail "what it says of fewer ids"; }
check teacher >"$tmp/said" && grep -q '^teacher  *teacher: qwen3, 3 layers' "$tmp/said" && ! grep warning "$tmp/said" || { cat "$tmp/said"; fail "check: not fine"; }
check renamed >"$tmp/said" && grep -q '^warning .*renamed' "$tmp/said" || { cat "$tmp/said"; fail "check: no warning of a token with another name"; }
student renamed "$tmp/renamed-out" '"max_steps": 1' '"save_steps": 0'
sed -i 's|"teacher": "[^"]*"|"teacher": "'"$tmp/renamed"'"|' "$tmp/renamed.json"
run renamed && grep -q '^warning: distillation.teacher: the added token .*renamed' "$tmp/renamed.log" || { cat "$tmp/renamed.log"; fail "no warning of a token with another name"; }
# A submission looks from the directory of the run, and leaves what is not there to the nodes.
for teacher in teacher only-on-nodes; do
	(cd / && ! "${DTRAIN_BUILD:-.}/dtrain" --socket "$tmp/no-socket" submit --set "distillation.teacher=$teacher" "$tmp/check.conf" >"$tmp/said" 2>&1) || fail "submitted without a service"
	grep -q no-socket "$tmp/said" && ! grep -q teacher "$tmp/said" || { cat "$tmp/said"; fail "what submit says of $teacher"; }
done
# The ranks compare what they have read.
cp -r "$tmp/student" "$tmp/altered"
"$DTRAIN_TEST_PYTHON" - "$tmp/altered/model.safetensors" <<-'EOF' || fail "other weights"
	import sys
	with open(sys.argv[1], "r+b") as f:
	    f.seek(-4, 2)
	    f.write(b"\0\0\0\0")
EOF
for name in one-teacher other-teacher; do
	student $name "$tmp/apart" '"max_steps": 2' '"save_steps": 0'
	sed -i 's|"teacher": "[^"]*"|"teacher": "'"$tmp/student"'"|' "$tmp/$name.json"
done
sed -i 's|"teacher": "[^"]*"|"teacher": "'"$tmp/altered"'"|' "$tmp/other-teacher.json"
! pair one-teacher other-teacher || fail "two teachers"
grep -q '^error: distillation.teacher: .*tensor ' "$tmp/one-teacher-0.log" || { cat "$tmp/one-teacher-0.log"; fail "what it says of two teachers"; }
# Rank 0 sends them.
for name in one-teacher other-teacher; do sed -i 's|"model": {|&"load": "broadcast", |' "$tmp/$name.json"; done
pair one-teacher other-teacher || { cat "$tmp/one-teacher-0.log"; fail "the teacher of rank 0"; }
echo "distillation: as transformers, ranks, resume, precisions, adapters"
