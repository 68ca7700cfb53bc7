#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The losses that a trained model gives to each token of a text, against those that PyTorch gave.

stories.py GRAD_DUMP CHECKPOINT [bf16]; CHECKPOINT/reference.json has ids and per_token_nll.
"""
import json, struct, subprocess, sys, tempfile

program, checkpoint, flags = sys.argv[1], sys.argv[2], sys.argv[3:]
reference = json.load(open(checkpoint + "/reference.json"))
want = reference["per_token_nll"]
with tempfile.TemporaryDirectory() as d:
    with open(d + "/batch.json", "w") as f:
        json.dump({"documents": [reference["ids"]], "masked": [0]}, f)
    subprocess.run([program, checkpoint, d + "/batch.json", d + "/out", *flags], check=True)
    data = open(d + "/out/model.safetensors", "rb").read()
length = struct.unpack("<Q", data[:8])[0]
begin, end = json.loads(data[8:8 + length])["losses"]["data_offsets"]
got = struct.unpack(f"<{(end - begin) // 4}f", data[8 + length + begin:8 + length + end])[:len(want)]
worst = max(abs(a - b) for a, b in zip(got, want))
limit = 0.15 if "bf16" in flags else 1e-4
print(f"{len(want)} losses {' '.join(flags)}: at most {worst:.2g} apart (limit {limit:g})")
sys.exit(0 if worst < limit and len(got) == len(want) else 1)
