#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A mixture of experts: two ranks have the losses of one rank under each strategy, a resumed run and one with offload have bitwise their own,
# the loss that balances experts does so, and adapters go on what has any, over experts in 4 bits, too.
. "$(dirname "$0")/worker.sh"
more() { # NAME GROUPS: adds groups to the configuration
	sed -i 's|"train": {|'"$2"', &|' "$tmp/$1.json"
}
pair() { # NAME
	local r s=0 both=
	mkdir -p "$tmp/meet-$1"
	for r in 0 1; do
		env -i PATH="$PATH" OMP_NUM_THREADS=1 RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r DTRAIN_DEVICE=0 DTRAIN_ATTEMPT=1 DTRAIN_RENDEZVOUS_DIR="$tmp/meet-$1" \
			DTRAIN_CONFIG="$tmp/$1.json" "$worker" >"$tmp/$1-$r.log" 2>&1 &
		both="$both $!"
		pids="$pids $!"
	done
	for r in $both; do wait "$r" || s=1; done
	return $s
}
values() { losses "$tmp/$1" | sed -E 's/.*"loss":([^,]*),.*/\1/'; }
near() { # A B
	paste -d ' ' <(values "$1") <(values "$2") |
		awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > max) max = d; n++ } END { printf "'"$2"': largest difference of the losses %.1e\n", max; exit !(n == 20 && max <= 1e-5) }'
}
same() { # A B FILE
	diff <(losses "$tmp/$1") <(losses "$tmp/$2") && cmp "$tmp/$1/$3" "$tmp/$2/$3" || fail "$2: not the losses and the weights of $1"
}
mkdir "$tmp/model"
cp "$src"/tests/engine/bytes/* "$tmp/model/"
cat >"$tmp/model/config.json" <<'EOF'
{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 48, "intermediate_size": 96, "moe_intermediate_size": 40,
 "num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": true, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
 "head_dim": 16, "vocab_size": 512, "max_position_embeddings": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "tie_word_embeddings": true,
 "bos_token_id": 1, "eos_token_id": 2}
EOF
vocab=$(sed -n 's/.*"vocab_size": *\([0-9]*\).*/\1/p' "$src/tests/engine/bytes/config.json")
sed -i "s/\"vocab_size\": 512/\"vocab_size\": $vocab/" "$tmp/model/config.json"
experts() { # as json, with the mixture of experts
	json "$@"
	sed -i "s|$src/tests/engine/bytes|$tmp/model|" "$tmp/$1.json"
}

experts one "$tmp/one" '"max_steps": 20, "accumulation": 2' '"save_steps": 10'
run one || { cat "$tmp/one.log"; fail "one rank"; }
for s in ddp zero1 zero2 zero3; do
	experts $s "$tmp/$s" '"max_steps": 20' '"save_steps": 10'
	more $s "\"parallel\": {\"strategy\": \"$s\"}"
	pair $s || { cat "$tmp/$s-0.log"; fail "$s"; }
	near one $s || fail "$s: other losses than one rank"
done
experts lean "$tmp/lean" '"max_steps": 20' '"save_steps": 10'
more lean '"parallel": {"strategy": "zero3", "prefetch": 0}'
pair lean || { cat "$tmp/lean-0.log"; fail "zero3 with one slot"; }
same zero3 lean model.safetensors

# Killed after a checkpoint, and resumed.
cp "$tmp/one/model.safetensors" "$tmp/whole"
losses "$tmp/one" >"$tmp/losses"
rm -r "$tmp/one/checkpoint-20" "$tmp/one/model.safetensors"
attempt=2 run one || { cat "$tmp/one.log"; fail "resumed"; }
grep -q '^resuming from .*checkpoint-10' "$tmp/one.log" && cmp "$tmp/whole" "$tmp/one/model.safetensors" && diff "$tmp/losses" <(losses "$tmp/one") ||
	fail "resumed: other losses or weights"

# What is computed again, and what the host holds, changes no bit.
for how in '"recompute": "full"' '"recompute": "selective"'; do
	rm -rf "$tmp/again"
	experts again "$tmp/again" '"max_steps": 20, "accumulation": 2, '"$how" '"save_steps": 10'
	run again || { cat "$tmp/again.log"; fail "$how"; }
	same one again model.safetensors
done
experts host "$tmp/host" '"max_steps": 20, "accumulation": 2' '"save_steps": 10'
more host '"parallel": {"offload": "all"}'
run host || { cat "$tmp/host.log"; fail "offload"; }
same one host model.safetensors

for precision in bf16 fp16; do
	experts $precision "$tmp/$precision" "\"max_steps\": 20, \"accumulation\": 2" '"save_steps": 0'
	sed -i 's|"precision": "fp32"|"precision": "'$precision'"|' "$tmp/$precision.json"
	run $precision || { cat "$tmp/$precision.log"; fail "$precision"; }
	paste -d ' ' <(values one) <(values $precision) | awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > max) max = d; n++ }
		END { printf "'$precision': largest difference of the losses %.4f of them\n", max; exit !(n == 20 && max < 0.02) }' || fail "$precision: other losses than fp32"
done
for optimizer in muon adafactor adamw_8bit; do
	experts $optimizer "$tmp/$optimizer" '"max_steps": 20, "accumulation": 2, "optimizer": "'$optimizer'"' '"save_steps": 0'
	run $optimizer || { cat "$tmp/$optimizer.log"; fail "$optimizer"; }
	values $optimizer | awk 'NR == 1 { first = $1 } { last = $1 } END { printf "'$optimizer': losses %s to %s\n", first, last; exit !(last < first - 0.02) }' ||
		fail "$optimizer: the loss does not fall"
done
experts fp8 "$tmp/fp8" '"max_steps": 20' '"save_steps": 0'
sed -i 's|"precision": "fp32"|"precision": "fp8"|' "$tmp/fp8.json"
! run fp8 || fail "fp8 runs"
grep -q '^error: train.precision = "fp8" is not there for a mixture of experts' "$tmp/fp8.log" || { cat "$tmp/fp8.log"; fail "what it says of fp8"; }

# Adapters of attention, over experts that are frozen, in 4 bits, too.
sed 's|"init": "[^"]*"|"path": "'"$tmp/one"'"|' "$tmp/one.json" >"$tmp/base.json"
for how in none nf4; do
	sed "s|\"dir\": \"[^\"]*\"|\"dir\": \"$tmp/lora-$how\"|" "$tmp/base.json" >"$tmp/lora-$how.json"
	more lora-$how '"lora": {"rank": 4, "alpha": 16, "quantize": "'$how'"}'
	run lora-$how || { cat "$tmp/lora-$how.log"; fail "adapters, quantize $how"; }
	[ -s "$tmp/lora-$how/adapter_model.safetensors" ] || fail "no adapter"
done
sed "s|\"dir\": \"[^\"]*\"|\"dir\": \"$tmp/none\"|" "$tmp/base.json" >"$tmp/none.json"
more none '"lora": {"rank": 4, "target": ["gate_proj"]}'
! run none || fail "adapters of experts"
grep -q '^error: lora.target: the model has no gate_proj; .*experts have no adapters' "$tmp/none.log" || { cat "$tmp/none.log"; fail "what it says of adapters of experts"; }
echo "a mixture of experts: strategies, offload, resume, precisions, optimizers, adapters"
