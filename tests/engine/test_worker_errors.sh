#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# An error in the files of a run gives one line on stderr and in the error file that says what is wrong and where, and exit status 1.
. "$(dirname "$0")/worker.sh"
train='"max_steps": 2'

# refuses NAME WORDS: the run of $tmp/NAME.json ends with status 1 and exactly one line of error, which contains the words.
refuses() {
	local status
	timeout 60 env -i PATH="$PATH" OMP_NUM_THREADS=1 DTRAIN_ATTEMPT="${DTRAIN_ATTEMPT:-1}" ${DTRAIN_RUN_ID+"DTRAIN_RUN_ID=$DTRAIN_RUN_ID"} \
		TORCHELASTIC_ERROR_FILE="$tmp/error-file" DTRAIN_CONFIG="$tmp/$1.json" "$worker" >"$tmp/out" 2>"$tmp/err"
	status=$?
	[ $status = 1 ] || { cat "$tmp/out" "$tmp/err"; fail "$1: status $status"; }
	[ "$(wc -l <"$tmp/err")" = 1 ] || { cat "$tmp/err"; fail "$1: not one line"; }
	grep -q -- "^error: .*$2" "$tmp/err" || { cat "$tmp/err"; fail "$1: lacks \"$2\""; }
	# The same for its launcher.
	grep -q -- "^{\"message\":{\"message\":\".*$2.*\",\"extraInfo\":{\"lost_peer\":false}}}$" "$tmp/error-file" ||
		{ cat "$tmp/error-file"; fail "$1: the error file lacks \"$2\""; }
	rm "$tmp/error-file"
	sed "s/^/$1: /" "$tmp/err"
}

echo file >"$tmp/file"
json output-is-a-file "$tmp/file/out" "$train"
refuses output-is-a-file "cannot make directory $tmp/file"

mkdir "$tmp/used" && echo x >"$tmp/used/notes.txt"
json output-in-use "$tmp/used" "$train"
refuses output-in-use "$tmp/used is not empty and has no checkpoint"

json nothing-to-resume "$tmp/none" "$train" '"resume": "must"'
refuses nothing-to-resume "has no checkpoint"

# The output directory is in use by another run; a later attempt of a run to which the files do not belong.
json writing "$tmp/shared" '"max_steps": 1000000' '"save_steps": 10'
DTRAIN_RUN_ID=3 start writing
writer=$pid
while kill -0 "$writer" 2>/dev/null && [ ! -d "$tmp/shared/checkpoint-10" ]; do sleep 0.01; done
json output-claimed "$tmp/shared" "$train" '"overwrite": true'
refuses output-claimed "$tmp/shared is being written by run 3"
kill -9 "$writer"
wait "$writer" 2>/dev/null
json output-of-another "$tmp/shared" "$train" '"resume": "never"'
DTRAIN_ATTEMPT=2 DTRAIN_RUN_ID=5 refuses output-of-another "$tmp/shared is not empty"

# A run that starts again after another run has claimed its directory.
json taken "$tmp/shared" "$train"
DTRAIN_RUN_ID=5 start taken
wait "$pid" || { cat "$tmp/taken.log"; fail "a run that goes on from the checkpoints of another"; }
DTRAIN_ATTEMPT=2 DTRAIN_RUN_ID=3 refuses writing "$tmp/shared belongs to run 5"

# A run that ended before its first checkpoint can be submitted again as another run with the same directory; other files there are still refused.
json early "$tmp/early" '"max_steps": 1000000' '"save_steps": 900000'
DTRAIN_RUN_ID=8 start early
while kill -0 "$pid" 2>/dev/null && [ ! -s "$tmp/early/metrics.jsonl" ]; do sleep 0.01; done
kill -9 "$pid"
wait "$pid" 2>/dev/null
[ -s "$tmp/early/metrics.jsonl" ] && [ -d "$tmp/early/runs" ] || { cat "$tmp/early.log"; fail "a run that ended early has left nothing"; }
json early "$tmp/early" "$train" '"save_steps": 900000'
cp -r "$tmp/early" "$tmp/early-notes" && echo x >"$tmp/early-notes/notes.txt"
DTRAIN_RUN_ID=9 start early
wait "$pid" || { cat "$tmp/early.log"; fail "the same run again after an early end"; }
json early-notes "$tmp/early-notes" "$train"
DTRAIN_RUN_ID=9 refuses early-notes "$tmp/early-notes is not empty"

printf '{"instruction": "%s", "output": "%s"}\n' "$(printf 'q%.0s' $(seq 5000))" "$(printf 'a%.0s' $(seq 40))" >"$tmp/masked.jsonl"
json nothing-to-learn "$tmp/o3" "$train"
sed -i "s|$src/LICENSE|$tmp/masked.jsonl|; s|\"pretrain\"|\"sft\"|; s|\"text\"|\"alpaca\", \"template\": \"alpaca\"|" "$tmp/nothing-to-learn.json"
refuses nothing-to-learn "no row of the data has a token to learn"

json no-data "$tmp/o1" "$train"
sed -i "s|$src/LICENSE|$tmp/absent.txt|" "$tmp/no-data.json"
refuses no-data "absent.txt"

# A named pipe without a writer as data, tokenizer, configuration and weights: the worker does not wait for it.
mkfifo "$tmp/pipe"
json data-pipe "$tmp/o1" "$train"
sed -i "s|$src/LICENSE|$tmp/pipe|" "$tmp/data-pipe.json"
refuses data-pipe "$tmp/pipe: it is a pipe; a regular file is needed"
json data-device "$tmp/o1" "$train"
sed -i "s|$src/LICENSE|/dev/zero|" "$tmp/data-device.json"
refuses data-device "/dev/zero: it is a device; a regular file is needed"
for file in config.json tokenizer.json tokenizer_config.json; do
	rm -rf "$tmp/pipes" && cp -r "$src/tests/engine/bytes" "$tmp/pipes" && rm "$tmp/pipes/$file" && mkfifo "$tmp/pipes/$file"
	json "$file-pipe" "$tmp/o1" "$train"
	sed -i "s|$src/tests/engine/bytes|$tmp/pipes|" "$tmp/$file-pipe.json"
	refuses "$file-pipe" "$tmp/pipes/$file: it is a pipe; a regular file is needed"
done

echo '{"task": "pretrain"' >"$tmp/broken.json"
refuses broken "broken.json"

# Moments of another optimizer.
json saved "$tmp/saved" '"max_steps": 4, "optimizer": "lion"' '"save_steps": 1'
run saved || { cat "$tmp/saved.log"; fail "a run with lion"; }
json other-optimizer "$tmp/saved" '"max_steps": 4'
refuses other-optimizer "was saved by the optimizer lion, and train.optimizer is adamw; expected lion"

json unknown-key "$tmp/o2" "$train, \"learnig_rate\": 1"
refuses unknown-key "learnig_rate"

# Each part of a saved model is damaged in turn.
json make "$tmp/model" "$train"
run make || { cat "$tmp/make.log"; fail "training for the damaged models"; }
# A model with ids that the tokenizer does not have: generation never chooses them.
mkdir "$tmp/wide" && cp "$src"/tests/engine/bytes/*.json "$tmp/wide" && sed -i 's/"vocab_size": 264/"vocab_size": 600/' "$tmp/wide/config.json"
json wide "$tmp/wide-model" "$train"
sed -i "s|$src/tests/engine/bytes|$tmp/wide|" "$tmp/wide.json"
run wide || { cat "$tmp/wide.log"; fail "training with more ids than the tokenizer has"; }
cat >"$tmp/generate.json" <<-EOF
	{"task": "generate", "model": {"path": "$tmp/wide-model"},
	 "generate": {"prompt": "a", "max_new_tokens": 250, "temperature": 2}}
EOF
run generate || { tail -1 "$tmp/generate.log"; fail "generating with more ids than the tokenizer has"; }

damaged() { # NAME WORDS: the model in $tmp/bad
	json "$1" "$tmp/o-$1" "$train"
	sed -i "s|\"init\": \"[^\"]*\"|\"path\": \"$tmp/bad\"|" "$tmp/$1.json"
	refuses "$1" "$2"
}
fresh() { rm -rf "$tmp/bad" && mkdir "$tmp/bad" && cp "$tmp"/model/*.json "$tmp"/model/*.safetensors "$tmp/bad"; }
fresh && truncate -s -100 "$tmp/bad/model.safetensors" && damaged truncated "model.safetensors: tensor .*(truncated?)"
fresh && truncate -s 100 "$tmp/bad/model.safetensors" && damaged cut-header "truncated: a header of"
fresh && sed -i 's/"model.norm.weight"/"model.morn.weight"/' "$tmp/bad/model.safetensors" && damaged missing-tensor "missing: model.norm.weight"
fresh && sed -i 's/"hidden_size": 48/"hidden_size": 64/' "$tmp/bad/config.json" && damaged other-shape "has shape .*; the model needs"
fresh && rm "$tmp/bad/model.safetensors" && damaged no-weights "neither model.safetensors nor"
fresh && rm "$tmp/bad/model.safetensors" && mkfifo "$tmp/bad/model.safetensors" && damaged weights-pipe "model.safetensors: it is a pipe; a regular file"
fresh && rm "$tmp/bad/config.json" && damaged no-config "config.json"
fresh && echo '{' >"$tmp/bad/tokenizer.json" && damaged broken-tokenizer "tokenizer.json"

# A full disk, emulated by a limit on the size of files: no incomplete file is left.
json full "$tmp/full" "$train" '"save_steps": 1'
ulimit -f 60
refuses full "model.safetensors: write failed\|File too large"
ulimit -f unlimited 2>/dev/null
[ -z "$(find "$tmp/full" -name '*.tmp')" ] || fail "leftovers: $(find "$tmp/full" -name '*.tmp')"
echo "every error is one line"
