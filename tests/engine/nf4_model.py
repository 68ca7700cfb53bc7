#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replaces the matrices of a model's blocks by what NF4 makes of them: nf4_model.py NF4_DUMP once|twice MODEL.safetensors OUT.safetensors, of fp32."""
import json
import pathlib
import struct
import subprocess
import sys

program, how, source, target = sys.argv[1:]
data = pathlib.Path(source).read_bytes()
start = 8 + struct.unpack("<Q", data[:8])[0]
header, out, changed = json.loads(data[8:start]), bytearray(data), 0
for name, tensor in header.items():
    if ".layers." not in name or len(tensor["shape"]) != 2:
        continue
    begin, end = (start + offset for offset in tensor["data_offsets"])
    assert tensor["dtype"] == "F32", name
    quantized = subprocess.run([program, how], input=data[begin:end], capture_output=True, check=True).stdout
    out[begin:end] = quantized[begin - end:]
    changed += 1
assert changed
pathlib.Path(target).write_bytes(out)
