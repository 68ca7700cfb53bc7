#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Losses, logits and every gradient against transformers' own models, for one small config of each family.

families.py GRAD_DUMP [bf16]; FAMILIES="CASE" in the environment: that case alone.

In fp32 the relative error of every tensor is below 1e-4. In bf16 no worse than three times what transformers' own model in
bf16 is away from itself in fp32.

Random weights are saved by save_pretrained, read by us. Documents of odd lengths are packed into one row here and
run one by one there. Exits 77 (skipped) without torch and transformers.
"""
import copy, json, os, subprocess, sys, tempfile

try:
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
BASE = dict(vocab_size=131, max_position_embeddings=128, initializer_range=0.2, rms_norm_eps=1e-5)


def shape(hidden, heads, kv, dim, intermediate, layers=3):
    return dict(hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv, head_dim=dim,
                intermediate_size=intermediate, num_hidden_layers=layers)


def llama(**k):
    return transformers.LlamaConfig(**BASE, **k)


def mistral(**k):
    return transformers.MistralConfig(**BASE, **k)


def qwen2(**k):
    return transformers.Qwen2Config(**BASE, **k)


def qwen3(**k):
    return transformers.Qwen3Config(**BASE, **k)


CASES = {
    "llama, llama3 rope, tied": lambda: llama(**shape(64, 4, 2, 16, 88), rope_parameters=LLAMA3, tie_word_embeddings=True),
    "llama, untied, head 64": lambda: llama(**shape(128, 2, 1, 64, 96), tie_word_embeddings=False),
    "llama, all biases": lambda: llama(**shape(48, 3, 3, 16, 72), attention_bias=True, mlp_bias=True),
    "llama, linear rope": lambda: llama(**shape(32, 2, 2, 16, 40), rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    "mistral, window 7": lambda: mistral(**shape(64, 4, 2, 16, 88), sliding_window=7),
    "mistral, no window, tied": lambda: mistral(**shape(64, 4, 1, 32, 88), sliding_window=None, tie_word_embeddings=True),
    "qwen2, tied": lambda: qwen2(**{k: v for k, v in shape(64, 4, 2, 16, 88).items() if k != "head_dim"}, tie_word_embeddings=True),
    "qwen2, untied, window from layer 1": lambda: qwen2(**{k: v for k, v in shape(96, 6, 2, 16, 72).items() if k != "head_dim"}, use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "qwen3, head 96, tied": lambda: qwen3(**shape(64, 2, 1, 96, 88), tie_word_embeddings=True),
    "qwen3, untied": lambda: qwen3(**shape(64, 4, 2, 64, 88)),
}


def relative(a, b):
    return ((a - b).norm() / b.norm().clamp_min(1e-30)).item()


def reference(model, documents, masked):
    """Sum of the losses over their count, and the logits of all documents behind each other."""
    total, count, logits = 0, 0, []
    for ids, skip in zip(documents, masked):
        out = model(input_ids=torch.tensor([ids])).logits[0]
        logits.append(out.detach())
        targets = torch.tensor(ids[1:], dtype=torch.long)
        first = max(skip - 1, 0)
        total = total + torch.nn.functional.cross_entropy(out[first:-1].float(), targets[first:], reduction="sum")
        count += len(ids) - 1 - first
    return total / count, torch.cat(logits)


def half_precision(model, documents, masked):
    """Three times the worst relative error of transformers' gradients in bf16."""
    half = copy.deepcopy(model).to(torch.bfloat16)
    half.zero_grad()
    reference(half, documents, masked)[0].backward()
    pairs = zip(half.parameters(), model.parameters())
    return 3 * max(relative(a.grad.float(), b.grad) for a, b in pairs)


def run(name, config, program, flags, documents, masked):
    if "bf16" in flags:  # with large weights the gradients of bf16 are noise
        config.initializer_range = 0.08
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.dim() == 1:  # norms of 1 and biases of 0 would hide mistakes
                p.add_(0.3 * torch.randn_like(p))
    with tempfile.TemporaryDirectory() as d:
        model.save_pretrained(d)
        with open(d + "/batch.json", "w") as f:
            json.dump({"documents": documents, "masked": masked}, f)
        subprocess.run([program, d, d + "/batch.json", d + "/out", *flags], check=True)
        ours = load_file(d + "/out/model.safetensors")
    loss, logits = reference(model, documents, masked)
    loss.backward()
    limit = half_precision(model, documents, masked) if "bf16" in flags else 1e-4
    worst, where = abs(ours["loss"].item() - loss.item()) / loss.item(), "loss"
    if "logits" in ours and relative(ours["logits"], logits) > worst:
        worst, where = relative(ours["logits"], logits), "logits"
    for key, p in model.named_parameters():
        e = relative(ours[key], p.grad)
        if e > worst:
            worst, where = e, key
    print(f"{'ok  ' if worst < limit else 'FAIL'} {name}{' ' + ' '.join(flags) if flags else ''}: loss {loss.item():.7f}, worst {where} {worst:.1e} (limit {limit:.1e})")
    return worst < limit


def main():
    program, bf16 = sys.argv[1], "bf16" in sys.argv[2:]
    torch.manual_seed(7)
    documents = [torch.randint(0, BASE["vocab_size"], (n,)).tolist() for n in (23, 1, 37, 8, 2)]
    plain, prompts, good = [0] * 5, [20, 0, 11, 0, 0], True
    for name, make in CASES.items():
        if os.environ.get("FAMILIES") not in (None, "", name):
            continue
        flags = ["bf16"] if bf16 else []
        good &= run(name, make(), program, flags, documents, plain)
        good &= run(name + ", prompts masked", make(), program, [*flags, "recompute"], documents, prompts)
    sys.exit(0 if good else 1)


main()
