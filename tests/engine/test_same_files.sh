#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Where ranks read different files, training does not begin: the error of every rank names the node, the file and the difference. With
# model.load = "broadcast" all ranks use the weights of rank 0. Weights that are not finite are named.
. "$(dirname "$0")/worker.sh"

# on_rank RANK CONFIG: starts one of two ranks on "node" n1 or n2 in the background; $rankN is its process, CONFIG-N.log its log
on_rank() {
	env -i PATH="$PATH" OMP_NUM_THREADS=1 DTRAIN_ATTEMPT="${attempt:-1}" RANK="$1" WORLD_SIZE=2 LOCAL_RANK="$1" DTRAIN_NODE="n$(($1 + 1))" \
		DTRAIN_RENDEZVOUS_DIR="$meet" DTRAIN_CONFIG="$tmp/$2.json" "$worker" >"$tmp/$2-$1.log" 2>&1 &
	eval "rank$1=$!"
	pids="$pids $!"
}
# both CONFIG0 CONFIG1: runs both ranks to their end; s0 and s1 are their exit statuses.
both() {
	meet=$(mktemp -d "$tmp/meet-XXXXXX")
	on_rank 0 "$1"
	on_rank 1 "$2"
	# shellcheck disable=SC2154 # set by on_rank
	wait "$rank0"; s0=$?
	# shellcheck disable=SC2154 # set by on_rank
	wait "$rank1"; s1=$?
}
show() { cat "$tmp/$1-0.log" "$tmp/$2-1.log"; }
# refuse CONFIG0 CONFIG1 WORDS: both end with status 1 and the same words, before the first step.
refuse() {
	both "$1" "$2"
	[ $s0 = 1 ] && [ $s1 = 1 ] || { show "$1" "$2"; fail "$2: status $s0 and $s1"; }
	for log in "$tmp/$1-0.log" "$tmp/$2-1.log"; do
		grep -q -- "^error: $3" "$log" || { show "$1" "$2"; fail "$2: $(basename "$log") lacks \"$3\""; }
	done
	! grep -q '^step ' "$tmp/$1-0.log" || { show "$1" "$2"; fail "$2: trained all the same"; }
	grep '^error: ' "$tmp/$2-1.log"
}
# apart NAME SED: makes the configuration of rank 1 from base.json with changes
apart() { sed "$2; s|\"dir\": \"[^\"]*\"|\"dir\": \"$tmp/elsewhere\"|; s|$tmp/cache|$tmp/cache-$1|" "$tmp/base.json" >"$tmp/$1.json"; }

json make "$tmp/model" '"max_steps": 2'
run make || { cat "$tmp/make.log"; fail "making a model"; }
json base "$tmp/out" '"max_steps": 2' '"overwrite": true'
sed -i "s|\"init\": \"[^\"]*\"|\"path\": \"$tmp/model\"|" "$tmp/base.json"
# where TENSOR: prints the position of its first byte in the file
where() {
	python3 - "$tmp/model/model.safetensors" "$1" <<-'EOF'
		import json, struct, sys
		data = open(sys.argv[1], "rb").read()
		(n,) = struct.unpack("<Q", data[:8])
		print(8 + n + json.loads(data[8:8 + n])[sys.argv[2]]["data_offsets"][0])
	EOF
}
# shellcheck disable=SC2059 # the bytes are written as escapes of printf
put() { printf "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }
flip() { put "$1" "$2" "$(printf '\\x%02x' $(($(od -An -tu1 -j "$2" -N 1 "$1") ^ 1)))"; }
tensor=model.layers.1.mlp.up_proj.weight
cp -r "$tmp/model" "$tmp/other"
flip "$tmp/other/model.safetensors" $(($(where $tensor) + 4000))
[ "$(cmp -l "$tmp/model/model.safetensors" "$tmp/other/model.safetensors" | wc -l)" = 1 ] || fail "not one byte was changed"

both base base
[ $s0 = 0 ] && [ $s1 = 0 ] || { show base base; fail "two ranks with the same files"; }
apart weights "s|$tmp/model|$tmp/other|"
refuse base weights "node n2, rank 1: $tmp/other/model.safetensors: tensor $tensor is not what rank 0 on node n1 has"

# With the weights of rank 0 only, and none for rank 1, the run is bitwise the same as with one set of files.
sed 's|"path": "\([^"]*model\)"|&, "load": "broadcast"|' "$tmp/base.json" >"$tmp/send.json"
rm "$tmp/other/model.safetensors"
apart receive "s|$tmp/model\"|$tmp/other\", \"load\": \"broadcast\"|"
cp "$tmp/out/model.safetensors" "$tmp/want"
both send receive
[ $s0 = 0 ] && [ $s1 = 0 ] || { show send receive; fail "two ranks, one reads"; }
cmp -s "$tmp/want" "$tmp/out/model.safetensors" || fail "sent weights: another model"
echo "sent weights are those of the files"
# Weights that rank 0 lacks: the other rank ends with its words.
sed "s|$tmp/model\"|$tmp/other\"|" "$tmp/send.json" >"$tmp/none.json"
refuse none receive "$tmp/other"

# Differences in configuration, tokenizer and data.
rm -rf "$tmp/other" && cp -r "$tmp/model" "$tmp/other"
sed -i 's/"rope_theta": [0-9.]*/"rope_theta": 20000.0/' "$tmp/other/config.json"
cmp -s "$tmp/model/config.json" "$tmp/other/config.json" && fail "config.json was not changed"
apart config "s|$tmp/model|$tmp/other|"
refuse base config "node n2, rank 1: $tmp/other/config.json: the model's configuration is not what rank 0 on node n1 has"
python3 -c 'import json, sys; json.dump({**json.load(open(sys.argv[1])), "transformers_version": "4.0.1", "use_cache": False, "_name_or_path": "elsewhere"}, open(sys.argv[2], "w"), indent=7)' "$tmp/model/config.json" "$tmp/other/config.json"
both base config
[ $s0 = 0 ] && [ $s1 = 0 ] || { show base config; fail "the same model in another layout, by another release"; }
rm -rf "$tmp/other" && cp -r "$tmp/model" "$tmp/other"
sed -i 's/"eos_token": *"[^"]*"/"eos_token": "a"/' "$tmp/other/tokenizer_config.json"
cmp -s "$tmp/model/tokenizer_config.json" "$tmp/other/tokenizer_config.json" && fail "the tokenizer was not changed"
apart tokenizer "s|$tmp/model|$tmp/other|"
refuse base tokenizer "node n2, rank 1: $tmp/other: the tokenizer is not what rank 0 on node n1 has"
# pad_token_id, which the task reward alone reads from config.json.
rm -rf "$tmp/other" && cp -r "$tmp/model" "$tmp/other"
python3 - "$tmp" "$src" <<-'EOF'
	import json, sys
	tmp, src = sys.argv[1:]
	config = json.load(open(f"{tmp}/other/config.json"))
	json.dump({**config, "pad_token_id": 7}, open(f"{tmp}/other/config.json", "w"))
	run = json.load(open(f"{tmp}/base.json"))
	run["task"] = "reward"
	run["data"] = {"path": [f"{src}/etc/examples/preferences.json"], "template": "default", "max_length": 96, "cache_dir": f"{tmp}/cache"}
	for name, model, out in ("reward", "model", "reward-out"), ("padded", "other", "elsewhere"):
	    run["model"] = {"path": f"{tmp}/{model}", "tokenizer": f"{src}/tests/engine/bytes"}
	    run["output"]["dir"] = f"{tmp}/{out}"
	    json.dump(run, open(f"{tmp}/{name}.json", "w"))
EOF
refuse reward padded "node n2, rank 1: $tmp/other/config.json: pad_token_id is not what rank 0 on node n1 has"
apart causal "s|$tmp/model|$tmp/other|"
both base causal
[ $s0 = 0 ] && [ $s1 = 0 ] || { show base causal; fail "another pad_token_id of a causal model"; }
tr A-C X-Z <"$src/LICENSE" | head -c "$(wc -c <"$src/LICENSE")" >"$tmp/license.txt"
apart data "s|$src/LICENSE|$tmp/license.txt|"
refuse base data "node n2, rank 1: $tmp/cache-data/[0-9a-f]*.train: the tokenized data of $tmp/license.txt is not what rank 0 on node n1 has"

# A difference in one byte of the tokenized rows, which the checksum of the file does not cover.
apart rows ''
both base rows
[ $s0 = 0 ] && [ $s1 = 0 ] || { show base rows; fail "two caches of the same data"; }
flip "$(echo "$tmp"/cache-rows/*.train)" 1000
refuse base rows "node n2, rank 1: $tmp/cache-rows/[0-9a-f]*.train: the tokenized data of $src/LICENSE is not what rank 0 on node n1 has"

# A NaN in the weights: the error names the tensor, not the learning rate.
cp -r "$tmp/model" "$tmp/nan"
put "$tmp/nan/model.safetensors" $(($(where $tensor) + 40)) '\x00\x00\xc0\x7f'
json nan "$tmp/nan-out" '"max_steps": 2'
sed -i "s|\"init\": \"[^\"]*\"|\"path\": \"$tmp/nan\"|" "$tmp/nan.json"
run nan && fail "weights with NaN were trained"
grep -q "^error: $tmp/nan/model.safetensors: tensor $tensor: element 10 is NaN" "$tmp/nan.log" || { cat "$tmp/nan.log"; fail "weights with NaN: other words"; }
grep '^error: ' "$tmp/nan.log"
# In a checkpoint that is resumed: it is not what was saved, and there is no other.
json resumed "$tmp/resumed" '"max_steps": 2' '"save_steps": 2'
run resumed || { cat "$tmp/resumed.log"; fail "a run to resume"; }
state="$tmp/resumed/checkpoint-2/dtrain/rank-00000-of-00001.safetensors"
put "$state" $(($(wc -c <"$state") - 4)) '\x00\x00\xc0\x7f'
run resumed && fail "a damaged checkpoint was resumed"
grep -q "^error: $state: tensor v\..* is not what was saved: the file is damaged; .* has no older checkpoint" "$tmp/resumed.log" || { cat "$tmp/resumed.log"; fail "a damaged checkpoint: other words"; }
grep '^error: ' "$tmp/resumed.log"
echo "ranks begin with the same files only"
