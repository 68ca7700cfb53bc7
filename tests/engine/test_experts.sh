#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A mixture of experts: two ranks have the losses of one rank under each strategy; a resumed run, one that recomputes and one with offload have the
# same bits, also with the loss that balances experts; every precision and optimizer trains it; attention has adapters, also over experts in 4 bits.
. "$(dirname "$0")/worker.sh"
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
same_run zero3 lean

# Killed after a checkpoint, and resumed.
cp "$tmp/one/model.safetensors" "$tmp/whole"
losses "$tmp/one" >"$tmp/losses"
rm -r "$tmp/one/checkpoint-20" "$tmp/one/model.safetensors"
attempt=2 run one || { cat "$tmp/one.log"; fail "resumed"; }
grep -q '^resuming from .*checkpoint-10' "$tmp/one.log" && cmp "$tmp/whole" "$tmp/one/model.safetensors" && diff "$tmp/losses" <(losses "$tmp/one") ||
	fail "resumed: other losses or weights"

# The loss that balances experts is that of each micro-batch: of two on one rank, or of one on each of two.
balanced='"max_steps": 20, "router_loss": 0.5'
experts balanced "$tmp/balanced" "$balanced, \"accumulation\": 2" '"save_steps": 10'
run balanced || { cat "$tmp/balanced.log"; fail "router_loss"; }
paste -d ' ' <(loss_values one) <(loss_values balanced) | head -n 1 | awk '{ exit !($2 > $1 + 0.9 && $2 < $1 + 2) }' || fail "router_loss: 0.5 times at least 2 is not in the loss"
experts balanced2 "$tmp/balanced2" "$balanced" '"save_steps": 0'
more balanced2 '"parallel": {"strategy": "zero3", "prefetch": 0}'
pair balanced2 || { cat "$tmp/balanced2-0.log"; fail "router_loss, two ranks"; }
near balanced balanced2 || fail "router_loss: other losses than one rank"
experts balanced3 "$tmp/balanced3" "$balanced, \"accumulation\": 2, \"recompute\": \"full\"" '"save_steps": 10'
run balanced3 || { cat "$tmp/balanced3.log"; fail "router_loss, recomputed"; }
same_run balanced balanced3
rm -r "$tmp/balanced3/checkpoint-20" "$tmp/balanced3/model.safetensors"
attempt=2 run balanced3 || { cat "$tmp/balanced3.log"; fail "router_loss, resumed"; }
grep -q '^resuming from .*checkpoint-10' "$tmp/balanced3.log" || fail "router_loss: not resumed"
same_run balanced balanced3

# What is computed again, and what the host holds, changes no bit.
for how in '"recompute": "full"' '"recompute": "selective"'; do
	rm -rf "$tmp/again"
	experts again "$tmp/again" '"max_steps": 20, "accumulation": 2, '"$how" '"save_steps": 10'
	run again || { cat "$tmp/again.log"; fail "$how"; }
	same_run one again
done
experts host "$tmp/host" '"max_steps": 20, "accumulation": 2' '"save_steps": 10'
more host '"parallel": {"offload": "all"}'
run host || { cat "$tmp/host.log"; fail "offload"; }
same_run one host

for precision in bf16 fp16; do
	experts $precision "$tmp/$precision" "\"max_steps\": 20, \"accumulation\": 2" '"save_steps": 0'
	sed -i 's|"precision": "fp32"|"precision": "'$precision'"|' "$tmp/$precision.json"
	run $precision || { cat "$tmp/$precision.log"; fail "$precision"; }
	within one $precision 0.02 || fail "$precision: other losses than fp32"
done
# Rows of an expert are a multiple, here of more than all tokens are; what is not multiplied in its own type is widened.
experts odd "$tmp/odd" '"max_steps": 5' '"save_steps": 0'
sed -i 's|"precision": "fp32"|"precision": "fp16"|; s|"max_length": 64|"max_length": 50|; s|"micro_batch": 2|"micro_batch": 1|' "$tmp/odd.json"
sed -i 's|"init": "[^"]*"|"init": "'"$tmp/wide"'"|' "$tmp/odd.json"
cp -r "$tmp/model" "$tmp/wide"
sed -i 's|"moe_intermediate_size": 40|"moe_intermediate_size": 512|; s|"num_experts": 6, "num_experts_per_tok": 2|"num_experts": 1, "num_experts_per_tok": 1|' "$tmp/wide/config.json"
run odd || { cat "$tmp/odd.log"; fail "50 tokens in fp16"; }
for optimizer in muon adafactor adamw_8bit; do
	experts $optimizer "$tmp/$optimizer" '"max_steps": 20, "accumulation": 2, "optimizer": "'$optimizer'"' '"save_steps": 0'
	run $optimizer || { cat "$tmp/$optimizer.log"; fail "$optimizer"; }
	loss_values $optimizer | awk 'NR == 1 { first = $1 } { last = $1 } END { printf "'$optimizer': losses %s to %s\n", first, last; exit !(last < first - 0.02) }' ||
		fail "$optimizer: the loss does not fall"
done
experts fp8 "$tmp/fp8" '"max_steps": 20' '"save_steps": 0'
sed -i 's|"precision": "fp32"|"precision": "fp8"|' "$tmp/fp8.json"
! run fp8 || fail "fp8 runs"
grep -q '^error: train.precision = "fp8" is not supported for mixtures of experts' "$tmp/fp8.log" || { cat "$tmp/fp8.log"; fail "what it says of fp8"; }

# Adapters of attention, over experts that are frozen, in 4 bits, too.
sed 's|"init": "[^"]*"|"path": "'"$tmp/one"'"|' "$tmp/one.json" >"$tmp/base.json"
for how in none nf4; do
	sed "s|\"dir\": \"[^\"]*\"|\"dir\": \"$tmp/lora-$how\"|" "$tmp/base.json" >"$tmp/lora-$how.json"
	more lora-$how '"lora": {"rank": 4, "alpha": 16, "quantize": "'$how'"}'
	run lora-$how || { cat "$tmp/lora-$how.log"; fail "adapters, quantize $how"; }
	[ -s "$tmp/lora-$how/adapter_model.safetensors" ] || fail "no adapter"
done
paste -d ' ' <(loss_values lora-none) <(loss_values lora-nf4) | awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > max) max = d; n++ }
	END { printf "adapters over experts in 4 bits: largest difference of the losses %.4f of them\n", max; exit !(n == 20 && max > 0 && max < 0.02) }' || fail "nf4: other losses"
sed "s|\"dir\": \"[^\"]*\"|\"dir\": \"$tmp/none\"|" "$tmp/base.json" >"$tmp/none.json"
more none '"lora": {"rank": 4, "target": ["gate_proj"]}'
! run none || fail "adapters of experts"
grep -q '^error: lora.target: the model has no gate_proj; .*experts have no adapters' "$tmp/none.log" || { cat "$tmp/none.log"; fail "what it says of adapters of experts"; }
echo "a mixture of experts: strategies, offload, resume, precisions, optimizers, adapters"
