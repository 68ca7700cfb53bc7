#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peer of tests/gpu/run: transformers + PyTorch, full fine-tuning of a model from nothing, as its users run it.

torch_gpu.py CONFIG_JSON --length N --micro-batch N [--weights autocast|bf16] [--compile model|blocks] [--device cuda|cpu] [--steps N]

SDPA attention, fused AdamW, clipping at 1.0, the loss that transformers itself computes. "autocast": fp32 weights and optimizer,
bf16 autocast, as the Trainer's bf16=True; "bf16": weights and optimizer in bf16 altogether (less exact, less memory). --compile blocks
compiles each block by itself, as accelerate's regional compilation does: all of them are the same code, so that it takes much less time
than the whole model. Prints one line
of JSON: tokens_per_second (median step), allocated_mib and reserved_mib (PyTorch's own peaks), used_mib (of the device, by everybody).
"""
import time

LAUNCHED = time.time()

import argparse, json, os, statistics, sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
parser = argparse.ArgumentParser()
parser.add_argument("config")
parser.add_argument("--length", type=int, required=True)
parser.add_argument("--micro-batch", type=int, required=True)
parser.add_argument("--weights", choices=("autocast", "bf16"), default="autocast")
parser.add_argument("--compile", choices=("model", "blocks"))
parser.add_argument("--device", default="cuda")
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--warm", type=int, default=4)
options = parser.parse_args()

import torch
import transformers

transformers.logging.set_verbosity_error()
device = torch.device(options.device)
cuda = device.type == "cuda"
torch.set_float32_matmul_precision("high")
keys = json.load(open(options.config))
config = transformers.AutoConfig.for_model(keys.pop("model_type"), **keys)
config.use_cache = False
torch.manual_seed(0)
with device:
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="sdpa", dtype=torch.bfloat16 if options.weights == "bf16" else torch.float32)
model.train()
parameters = list(model.parameters())
optimizer = torch.optim.AdamW(parameters, lr=3e-4, weight_decay=0.1, fused=True)
step_model = torch.compile(model) if options.compile == "model" else model
if options.compile == "blocks":
    torch._dynamo.config.allow_unspec_int_on_nn_module = True  # a block knows its number, which else is compiled into it
    for block in model.model.layers:
        block.compile()


def synchronize():
    if cuda:
        torch.cuda.synchronize()


def step(tokens):
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=options.weights == "autocast"):
        loss = step_model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


times = []
try:
    for i in range(options.warm + options.steps):
        tokens = torch.randint(0, config.vocab_size, (options.micro_batch, options.length), device=device)
        synchronize()
        begun = time.time()
        loss = step(tokens).item()
        synchronize()
        ended = time.time()
        if i == 0:
            first = ended - LAUNCHED
        if i >= options.warm:
            times.append(ended - begun)
except torch.OutOfMemoryError:
    print(json.dumps({"error": "out of memory"}))
    sys.exit(3)
mib = 1 << 20
free, total = torch.cuda.mem_get_info() if cuda else (0, 0)
print(json.dumps({
    "torch": torch.__version__,
    "transformers": transformers.__version__,
    "weights": options.weights,
    "mode": {"model": "compiled", "blocks": "blocks compiled", None: "eager"}[options.compile],
    "parameters": sum(p.numel() for p in parameters),
    "tokens_per_second": round(options.micro_batch * options.length / statistics.median(times), 1),
    "allocated_mib": round(torch.cuda.max_memory_allocated() / mib) if cuda else 0,
    "reserved_mib": round(torch.cuda.max_memory_reserved() / mib) if cuda else 0,
    "used_mib": round((total - free) / mib),
    "first_step_s": round(first, 1),
    "loss": round(loss, 4),
}))
