# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of test_torch_curve.

torch_curve.py make CONFIG TOKENIZER DIR                 random start weights, saved by transformers with the tokenizer beside them
torch_curve.py compare DIR ROWS LR METRICS LIMIT SAVED   trains on the rows (rows_dump's lines) with AdamW, compares the losses with those of
                                                         metrics.jsonl, and loads with transformers what dtrain saved
"""
import json
import shutil
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM


def make(config, tokenizer, directory):
    torch.manual_seed(0)
    with open(config) as f:
        model = LlamaForCausalLM(LlamaConfig(**json.load(f)))
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"{tokenizer}/{name}", directory)


def batch_loss(model, rows):
    """The mean over the counted targets of all rows: the rows padded to one batch, as every trainer has them."""
    width = max(len(r["ids"]) for r in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    targets = torch.full((len(rows), width), -100)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for i, r in enumerate(rows):
        assert len(r["starts"]) == 2, "packed rows need a block mask"
        n = len(r["ids"])
        ids[i, :n], targets[i, :n], mask[i, :n] = torch.tensor(r["ids"]), torch.tensor(r["targets"]), 1
    logits = model(input_ids=ids, attention_mask=mask).logits.float()
    return torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1), ignore_index=-100)


def train(directory, rows, learning_rate):
    """The loss of each step."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="sdpa")
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=float(learning_rate), betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    losses = []
    with open(rows) as lines:
        for line in lines:
            loss = batch_loss(model, json.loads(line)["rows"])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
    return losses


def compare(start, rows, learning_rate, metrics, limit, saved):
    with open(metrics) as f:
        a = [x["loss"] for x in map(json.loads, f) if x.get("loss") is not None]
    b = train(start, rows, learning_rate)
    a = a[: len(b)]
    assert len(a) == len(b), f"{len(a)} losses against {len(b)}"
    worst = max(range(len(a)), key=lambda i: abs(a[i] - b[i]))
    print(f"{len(a)} steps: first {a[0]:.4f}, last {a[-1]:.4f} against {b[-1]:.4f}; "
          f"greatest difference {abs(a[worst] - b[worst]):.2e} at step {worst + 1}")
    assert abs(a[worst] - b[worst]) <= float(limit), f"more than {limit}"
    assert a[-1] < a[0] - 1, "the loss does not fall"
    check(saved)


def check(directory):
    model = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    ids = tokenizer("Hello, how are you?", return_tensors="pt").input_ids
    assert torch.isfinite(model(input_ids=ids).logits).all()
    print(f"transformers loads it: {sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters")


{"make": make, "compare": compare}[sys.argv[1]](*sys.argv[2:])
