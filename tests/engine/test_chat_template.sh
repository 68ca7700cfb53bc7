#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A model is saved with the template that it was trained with, which generate reads, also from an adapter; a template that was not chosen is reported, and a chat
# template that is not known is an error. What ends an answer is in generation_config.json, also of a model into which an adapter was merged.
. "$(dirname "$0")/worker.sh"
dtrain=$(readlink -f "${DTRAIN_BUILD:-.}/dtrain")
[ -x "$dtrain" ] || { echo "no $dtrain: set DTRAIN_BUILD to a build directory"; exit 77; }
cat >"$tmp/chat.json" <<-'EOF'
	[{"instruction": "Say a.", "output": "apple"}, {"instruction": "Say b.", "output": "banana"}]
EOF
sft() { # NAME OUTPUT-DIR STEPS [DATA] [MODEL]: a run on chat.json
	json "$1" "$2" "\"max_steps\": $3, \"schedule\": \"constant\"" '' '"eval_fraction": 0'
	sed -i 's|"task": "pretrain"|"task": "sft"|; s|\["[^"]*LICENSE"\], "format": "text"|["chat.json"], "format": "alpaca"'"${4:+, $4}"'|; s|"packing": true|"packing": false|; s|"max_length": 64|"max_length": 250|
		s|"model": {[^}]*}|"model": '"${5:-{\"init\": \"$src/tests/engine/bytes\"\}}"'|; s|"warmup_steps": 3|"warmup_steps": 0|' "$tmp/$1.json"
}
answer() { # MODEL GENERATE [DATA]: what it says to "Say b."
	cat >"$tmp/generate.json" <<-EOF
		{"task": "generate", "directory": "$tmp", "model": {"path": "$1"}, "data": {${3-}}, "train": {"precision": "fp32"},
		 "generate": {"prompt": "Say b.", "chat": true, "temperature": 0, "max_new_tokens": 20$2}}
	EOF
	env -i PATH="$PATH" OMP_NUM_THREADS=1 DTRAIN_ATTEMPT=1 DTRAIN_CONFIG="$tmp/generate.json" "$worker" 2>"$tmp/generate.err"
}
sft chatml "$tmp/chatml" 200 '"template": "chatml"'
run chatml || { cat "$tmp/chatml.log"; fail "chatml"; }
grep -qFx 'template: chatml (by data.template)' "$tmp/chatml.log" || fail "the log does not name the template"
[ "$(answer "$tmp/chatml" '' '"template": "chatml"')" = "$(answer "$tmp/chatml" '')" ] || fail "generate takes another template than the training"
[[ $(answer "$tmp/chatml" "") == banana* ]] || { fail "not trained: $(answer "$tmp/chatml" ""; cat "$tmp/generate.err")"; }
! grep -q warning "$tmp/generate.err" || fail "a warning: $(cat "$tmp/generate.err")"
[ "$(answer "$tmp/chatml" '' '"template": "default"')" != "$(answer "$tmp/chatml" '')" ] || fail "the answer does not depend on the template"
# Training that goes on from it has the same.
sft more "$tmp/more" 1 '' "{\"path\": \"$tmp/chatml\"}"
run more || { cat "$tmp/more.log"; fail "more"; }
grep -qFx "template: chatml (by the tokenizer's chat template, which dtrain wrote)" "$tmp/more.log" || fail "the template of the model is not taken"
cmp "$tmp/chatml/chat_template.jinja" "$tmp/more/chat_template.jinja" || fail "another chat template"
# An adapter has its own.
sft adapter "$tmp/adapter" 1 '"template": "chatml"' "{\"path\": \"$tmp/base\"}"
sed -i 's|"train": {|"lora": {"rank": 2}, &|' "$tmp/adapter.json"
cp -r "$tmp/chatml" "$tmp/base"
rm "$tmp/base/chat_template.jinja"
run adapter || { cat "$tmp/adapter.log"; fail "adapter"; }
[[ $(answer "$tmp/base" ", \"adapter\": \"$tmp/adapter\"") == banana* ]] || fail "generate does not take the template of the adapter"
! grep -q warning "$tmp/generate.err" || fail "a warning for the adapter: $(cat "$tmp/generate.err")"
answer "$tmp/base" '' >"$tmp/generate.out" || fail "a model without a template"
grep -q '^warning: the tokenizer has no chat template' "$tmp/generate.err" || fail "no warning that default is taken"
# No other template is taken for one that is not known.
echo '{{ messages }}' >"$tmp/base/chat_template.jinja"
sft unknown "$tmp/unknown" 1 '' "{\"path\": \"$tmp/base\"}"
! run unknown || fail "an unknown chat template is taken for another"
grep -q "the tokenizer's chat template is none that is known here: set data.template" "$tmp/unknown.log" || fail "no line that asks for data.template"
# Where the thoughts of earlier answers are left out, the saved template leaves them out, too.
sft thinks "$tmp/thinks" 1 '"template": "qwen3"'
run thinks || { cat "$tmp/thinks.log"; fail "thinks"; }
sft last "$tmp/last" 1 '"template": "qwen3", "mask_history": true'
run last || { cat "$tmp/last.log"; fail "last"; }
! grep -q 'loop.last' "$tmp/thinks/chat_template.jinja" || fail "all answers have thoughts in the training"
grep -q 'if not loop.last -' "$tmp/last/chat_template.jinja" || fail "the last answer alone has thoughts in the training"
# Other programs end an answer by generation_config.json.
ends() { tr -d ' \n' <"$1/generation_config.json" | grep -oE '"eos_token_id":(\[[0-9,]*\]|[0-9]+)'; }
[ "$(ends "$tmp/chatml")" = '"eos_token_id":2' ] || fail "chatml ends with $(ends "$tmp/chatml")"
cp -r "$tmp/chatml" "$tmp/turns"
rm "$tmp/turns/chat_template.jinja"
sed -i '0,/"added_tokens": *\[/s||&{"id":259,"content":"<\|im_start\|>","special":true},{"id":260,"content":"<\|im_end\|>","special":true},|' "$tmp/turns/tokenizer.json"
sft full "$tmp/full" 1 '"template": "chatml"' "{\"path\": \"$tmp/turns\"}"
run full || { cat "$tmp/full.log"; fail "full"; }
[ "$(ends "$tmp/full")" = '"eos_token_id":[260,259,2]' ] || fail "a model ends with $(ends "$tmp/full")"
sft part "$tmp/part" 1 '"template": "chatml"' "{\"path\": \"$tmp/turns\"}"
sed -i 's|"train": {|"lora": {"rank": 2}, &|' "$tmp/part.json"
run part || { cat "$tmp/part.log"; fail "part"; }
[ "$(ends "$tmp/part")" = '"eos_token_id":[260,259]' ] || fail "an adapter ends with $(ends "$tmp/part")"
"$dtrain" export --adapter "$tmp/part" "$tmp/turns" "$tmp/merged" || fail "export"
[ "$(ends "$tmp/merged")" = '"eos_token_id":[260,259,2]' ] || fail "a merged model ends with $(ends "$tmp/merged")"
"$dtrain" export --precision bf16 "$tmp/part" "$tmp/part16" || fail "export of an adapter"
[ "$(ends "$tmp/part16")" = '"eos_token_id":[260,259]' ] || fail "an exported adapter ends with $(ends "$tmp/part16")"
# Pretraining has no answers.
json text "$tmp/text" '"max_steps": 1' '' '"eval_fraction": 0'
sed -i 's|"model": {[^}]*}|"model": {"path": "'"$tmp/turns"'"}|; s|"warmup_steps": 3|"warmup_steps": 0|' "$tmp/text.json"
run text || { cat "$tmp/text.log"; fail "text"; }
[ "$(ends "$tmp/text")" = '"eos_token_id":2' ] || fail "after pretraining a model ends with $(ends "$tmp/text")"
echo "chat templates: saved, read by generate, by training and from an adapter"
