#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The lines of a worker about its data and its steps: each number with its unit.
. "$(dirname "$0")/worker.sh"

# says PATTERN: the log of the run has a whole line that matches.
says() { grep -qxE -- "$1" "$tmp/$name.log" || { cat "$tmp/$name.log"; fail "$name: no line \"$1\""; }; }
kib='[0-9.]+ (B|KiB)'
lines=$(grep -c '[^[:space:]]' "$src/LICENSE")

name=one
json one "$tmp/one" '"max_steps": 1' '' '"eval_fraction": 0.01'
run one || { cat "$tmp/one.log"; fail "one step"; }
says "tokenizing: 0 B of $kib read"
held=$(((lines + 99) / 100))
says "data: $((lines - held)) examples in [0-9]+ rows, [0-9]+ tokens"
says "1% held out for evaluation: $held of $lines examples"
says "model: .*; 1 step, [0-9]+ an epoch; .* of memory"
says "step 1/1 loss [0-9.]+ eval [0-9.]+ lr .* [0-9]+ tokens/s eta 0s"

name=count
json count "$tmp/count" '"max_steps": 2' '' '"eval_fraction": 7'
run count || { cat "$tmp/count.log"; fail "a count"; }
says "held out for evaluation: 7 of $lines examples"
says "model: .*; 2 steps, [0-9]+ an epoch; .* of memory"
