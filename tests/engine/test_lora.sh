#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Adapters (with dropout, noise on embeddings and smoothed targets; as DoRA and PiSSA) and freeze training: two ranks have the losses of one rank under each strategy, a resumed run and one with offload have its own
# bitwise, what is frozen stays as it was, and a target that the model does not have is one line.
. "$(dirname "$0")/worker.sh"
lora='"lora": {"rank": 4, "alpha": 16, "modules_to_save": ["norm"], "plus_ratio": 4, "dropout": 0.1}'
noise='"neftune_alpha": 5, "label_smoothing": 0.1'
json one "$tmp/one" "$noise"', "max_steps": 20, "accumulation": 2' '"save_steps": 10'
more one "$lora"
run one || { cat "$tmp/one.log"; fail "one rank"; }
[ -s "$tmp/one/adapter_model.safetensors" ] && [ -s "$tmp/one/adapter_config.json" ] && [ ! -e "$tmp/one/model.safetensors" ] ||
	fail "no adapter in PEFT's format"
for s in ddp zero1 zero2 zero3; do
	json $s "$tmp/$s" "$noise"', "max_steps": 20' '"save_steps": 10'
	more $s "$lora, \"parallel\": {\"strategy\": \"$s\"}"
	pair $s || { cat "$tmp/$s-0.log"; fail "$s"; }
	near one $s || fail "$s: other losses than one rank"
done

cp "$tmp/one/adapter_model.safetensors" "$tmp/whole"
# State in the host's memory, or on its disk, and the frozen weights there too, change no bit; each goes on from a checkpoint of the other.
mkdir "$tmp/nvme"
same() { # A B
	diff <(losses "$tmp/$1") <(losses "$tmp/$2") && cmp "$tmp/$1/adapter_model.safetensors" "$tmp/$2/adapter_model.safetensors" || fail "$2: not the losses and the adapter of $1"
}
for o in '"optimizer"' '"all"' '"all", "offload_dir": "'"$tmp/nvme"'"'; do
	rm -rf "$tmp/host"
	json host "$tmp/host" "$noise"', "max_steps": 20, "accumulation": 2' '"save_steps": 10'
	more host "$lora, \"parallel\": {\"offload\": $o}"
	run host || { cat "$tmp/host.log"; fail "offload: $o"; }
	same one host
done
rm -r "$tmp/host/checkpoint-20" "$tmp/host/adapter_model.safetensors"
cp "$tmp/one.json" "$tmp/back.json"
sed -i "s|$tmp/one|$tmp/host|" "$tmp/back.json"
attempt=2 run back || { cat "$tmp/back.log"; fail "resumed without offload"; }
grep -q '^resuming from .*checkpoint-10' "$tmp/back.log" || fail "not resumed without offload"
same one host
json zero3-host "$tmp/zero3-host" "$noise"', "max_steps": 20' '"save_steps": 10'
more zero3-host "$lora, \"parallel\": {\"strategy\": \"zero3\", \"offload\": \"all\"}"
pair zero3-host || { cat "$tmp/zero3-host-0.log"; fail "offload on two ranks"; }
same zero3 zero3-host

rm -r "$tmp/one/checkpoint-20" "$tmp/one/adapter_model.safetensors"
attempt=2 run one || { cat "$tmp/one.log"; fail "resumed"; }
grep -q '^resuming from .*checkpoint-10' "$tmp/one.log" && cmp "$tmp/whole" "$tmp/one/adapter_model.safetensors" || fail "resumed: another adapter"

# DoRA that begins as PiSSA, the same way.
dora='"lora": {"rank": 4, "dora": true, "rslora": true, "init": "pissa", "target": ["q_proj", "o_proj", "up_proj", "down_proj"]}'
json dora "$tmp/dora" '"max_steps": 20, "accumulation": 2' '"save_steps": 10'
more dora "$dora"
run dora || { cat "$tmp/dora.log"; fail "dora"; }
json dora2 "$tmp/dora2" '"max_steps": 20' '"save_steps": 0'
more dora2 "$dora, \"parallel\": {\"strategy\": \"zero3\"}"
pair dora2 || { cat "$tmp/dora2-0.log"; fail "dora, two ranks"; }
near dora dora2 || fail "dora: other losses than one rank"
cp "$tmp/dora/adapter_model.safetensors" "$tmp/whole"
rm -r "$tmp/dora/checkpoint-20" "$tmp/dora/adapter_model.safetensors"
attempt=2 run dora || { cat "$tmp/dora.log"; fail "dora, resumed"; }
grep -q '^resuming from .*checkpoint-10' "$tmp/dora.log" || fail "dora: not resumed"
cmp "$tmp/whole" "$tmp/dora/adapter_model.safetensors" || fail "dora, resumed: another adapter"

json some "$tmp/some" '"max_steps": 20, "accumulation": 2, "freeze_trainable_layers": 1, "freeze_trainable_modules": ["mlp", "q_proj"]' '"save_steps": 0'
json some2 "$tmp/some2" '"max_steps": 20, "freeze_trainable_layers": 1, "freeze_trainable_modules": ["mlp", "q_proj"]' '"save_steps": 0'
more some2 '"parallel": {"strategy": "zero3"}'
run some || { cat "$tmp/some.log"; fail "freeze training"; }
pair some2 || { cat "$tmp/some2-0.log"; fail "freeze training, two ranks"; }
near some some2 || fail "freeze training: other losses than one rank"

json none "$tmp/none" '"max_steps": 1' '"save_steps": 0'
more none '"lora": {"rank": 4, "target": ["no_proj"]}'
! run none || fail "a target that is not there"
grep -q '^error: lora.target: the model has no no_proj' "$tmp/none.log" || { cat "$tmp/none.log"; fail "what it says of a target that is not there"; }
echo "adapters: strategies, offload, resume, freeze training"
