#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Adapters (DoRA too) over a model in 4 bits have bitwise the losses of adapters over a model that holds what the 4 bits stand for; two ranks with any
# strategy have those of one, to 1e-5; where the 4 bits come from the host, and once other weights have been there, they are bitwise the same.
. "$(dirname "$0")/worker.sh"
programs=${DTRAIN_BUILD:-$src/build}/tests/engine
[ -x "$programs/nf4_dump" ] || { echo "no nf4_dump at $programs: make check builds it"; exit 77; }
steps=12
lora() { # NAME MODEL QUANTIZE STRATEGY [KEYS]: a run of adapters on a model
	json "$1" "$tmp/$1" "\"max_steps\": $steps, \"accumulation\": $([ "$4" = none ] && echo 2 || echo 1)"
	sed -i 's|"model": {[^}]*}|"model": {"path": "'"$2"'"}, "lora": {"rank": 4, "quantize": "'"$3"'"'"${5:-}"'}, "parallel": {"strategy": "'"${4/none/ddp}"'"}|' "$tmp/$1.json"
}
pair() { # NAME: two ranks
	local r p=
	mkdir -p "$tmp/meet-$1"
	for r in 0 1; do
		env -i PATH="$PATH" OMP_NUM_THREADS=1 DTRAIN_ATTEMPT=1 RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r DTRAIN_RENDEZVOUS_DIR="$tmp/meet-$1" \
			DTRAIN_CONFIG="$tmp/$1.json" "$worker" >"$tmp/$1-$r.log" 2>&1 &
		p="$p $!"
		pids="$pids $!"
	done
	for r in $p; do wait "$r" || { cat "$tmp/$1"-?.log; fail "two ranks, $1"; }; done
}

json base "$tmp/base" '"max_steps": 3, "accumulation": 1'
run base || { cat "$tmp/base.log"; fail "the base"; }
for how in once twice; do
	quantize=$([ $how = once ] && echo nf4 || echo nf4_double)
	cp -r "$tmp/base" "$tmp/$how"
	python3 "$src/tests/engine/nf4_model.py" "$programs/nf4_dump" $how "$tmp/base/model.safetensors" "$tmp/$how/model.safetensors" || fail "what $quantize stands for"
	lora "plain-$how" "$tmp/$how" none none
	lora "four-$how" "$tmp/base" "$quantize" none
	for name in "plain-$how" "four-$how"; do
		run "$name" || { cat "$tmp/$name.log"; fail "$name"; }
	done
	[ "$(lines "$tmp/four-$how")" = $steps ] || fail "$how: not $steps steps"
	cmp <(losses "$tmp/plain-$how") <(losses "$tmp/four-$how") || fail "$quantize: other losses than with the numbers that it stands for"
	[ "$(losses "$tmp/four-$how" | tail -n 1)" != "$(losses "$tmp/four-$how" | head -n 1)" ] || fail "$quantize: nothing was learnt"
	echo "$quantize: bitwise the losses of what it stands for"
done
if cmp -s <(losses "$tmp/four-once") <(losses "$tmp/plain-twice"); then fail "nf4 and nf4_double have the same losses"; fi
# The lengths that DoRA begins with are those of the rows in 4 bits.
for how in once twice; do
	lora "dora-plain-$how" "$tmp/$how" none none ', "dora": true'
	lora "dora-four-$how" "$tmp/base" "$([ $how = once ] && echo nf4 || echo nf4_double)" none ', "dora": true'
	for name in "dora-plain-$how" "dora-four-$how"; do
		run "$name" || { cat "$tmp/$name.log"; fail "$name"; }
	done
	[ "$(lines "$tmp/dora-four-$how")" = $steps ] || fail "$how, DoRA: not $steps steps"
	cmp <(losses "$tmp/dora-plain-$how") <(losses "$tmp/dora-four-$how") || fail "$how, DoRA: other losses than with the numbers that NF4 stands for"
done
if cmp -s <(losses "$tmp/dora-four-once") <(losses "$tmp/four-once"); then fail "DoRA and LoRA have the same losses"; fi
near() { # ONE TWO
	paste -d ' ' <(losses "$tmp/$1" | sed -E 's/.*"loss":([^,]*),.*/\1/') <(losses "$tmp/$2" | sed -E 's/.*"loss":([^,]*),.*/\1/') |
		awk -v s="$2" '{ d = $1 - $2; if (d < 0) d = -d; if (d > max) max = d; n++ } END { printf "%s: %d steps, largest difference of the losses %.2e\n", s, n, max; exit !(n == '$steps' && max <= 1e-5) }' ||
		fail "two ranks, $2, and one differ"
}
# The 4 bits in the host's memory, block by block.
host() { # NAME: writes NAME-host, the same run with offload
	sed "s|$tmp/$1\"|$tmp/$1-host\"|; s|\"parallel\": {|&\"offload\": \"all\", \"prefetch\": 0, |" "$tmp/$1.json" >"$tmp/$1-host.json"
}
host four-twice
run four-twice-host || { cat "$tmp/four-twice-host.log"; fail "offload"; }
cmp <(losses "$tmp/four-twice") <(losses "$tmp/four-twice-host") || fail "other losses with offload"
lora dora-zero3 "$tmp/base" nf4_double zero3 ', "dora": true'
pair dora-zero3
near dora-four-twice dora-zero3
host dora-zero3
pair dora-zero3-host
cmp <(losses "$tmp/dora-zero3") <(losses "$tmp/dora-zero3-host") || fail "other losses with offload on two ranks"
for s in ddp zero2 zero3; do
	lora $s "$tmp/base" nf4_double $s
	pair $s
	near four-twice $s
done
# A reference model passes through the same memory before the run's own weights do.
json other "$tmp/other" '"max_steps": 3, "accumulation": 1, "seed": 9'
run other || { cat "$tmp/other.log"; fail "another model"; }
prefer() { # NAME PARALLEL ACCUMULATION
	cat >"$tmp/$1.json" <<-EOF
		{"task": "dpo", "directory": "$tmp", "model": {"path": "$tmp/base"}, "lora": {"rank": 4, "quantize": "nf4"},
		 "data": {"path": ["$src/etc/examples/preferences.json"], "template": "default", "max_length": 64, "cache_dir": "$tmp/cache"},
		 "train": {"max_steps": $steps, "micro_batch": 1, "accumulation": $3, "learning_rate": 0.001, "precision": "fp32"},
		 "preference": {"reference": "$tmp/other"}, "parallel": {$2}, "output": {"dir": "$tmp/$1", "log_steps": 1, "save_steps": 0}}
	EOF
}
prefer dpo '"strategy": "ddp"' 2
run dpo || { cat "$tmp/dpo.log"; fail "dpo"; }
prefer dpo-host '"offload": "all"' 2
run dpo-host || { cat "$tmp/dpo-host.log"; fail "dpo with offload"; }
cmp <(losses "$tmp/dpo") <(losses "$tmp/dpo-host") || fail "dpo: other losses with offload"
prefer dpo-zero3 '"strategy": "zero3"' 1
pair dpo-zero3
near dpo dpo-zero3
