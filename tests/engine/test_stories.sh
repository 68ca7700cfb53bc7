#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Greedy generation from a real checkpoint gives the text that llama2.c's run.c gives.
. "$(dirname "$0")/worker.sh"
model=$src/../shared/checkpoints/stories260K
[ -d "$model" ] || { echo "../shared/checkpoints/stories260K is absent"; exit 77; }
want=$model/greedy_from_run_c.txt
prompt="Once upon a time"
# In fp16 the likeliest tokens are the same ones: no two of this text are as near to each other as its rounding.
for precision in fp32 fp16; do
	cat >"$tmp/generate.json" <<-EOF
		{"task": "generate", "model": {"path": "$model"}, "train": {"precision": "$precision"},
		 "generate": {"prompt": "$prompt", "max_new_tokens": ${TOKENS:-300}, "temperature": 0}}
	EOF
	run generate || { cat "$tmp/generate.log"; fail "generate"; }
	{ printf %s "$prompt"; cat "$tmp/generate.log"; } >"$tmp/text"
	# run.c stops after a number of steps, so that its text is the beginning of this engine's text.
	head -c "$(($(wc -c <"$want") - 1))" "$tmp/text" | cmp -s - <(head -c "$(($(wc -c <"$want") - 1))" "$want") ||
		{ diff "$tmp/text" "$want"; fail "another text in $precision"; }
	echo "$(wc -c <"$want") bytes are the same in $precision"
done
