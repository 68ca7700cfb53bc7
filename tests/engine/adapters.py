# SPDX-License-Identifier: Apache-2.0
"""Adapters beside PEFT: LoRA, rsLoRA, DoRA and PiSSA, with weight decay too; with bitsandbytes also over NF4: qlora, qdora.

adapters.py WORKER BUILD [steps=N] [variants=a,b] [strategies=a,b|all] [families=a,b|all]

For each variant, on the same batches from the same start: the losses of `steps` steps on one rank, and on two ranks with each of the
strategies, within 1e-3 of PEFT's; every gradient within 1e-4; the logits of our adapter in PEFT, and of PEFT's adapter here, within 1e-4.
Over NF4 the losses alone. The family of the base is llama unless `families` names others, the variants all without NF4.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import (AutoModelForCausalLM, BitsAndBytesConfig, Gemma2Config, Gemma3TextConfig, Glm4Config, GPT2Config, GraniteConfig, LlamaConfig, MistralConfig,
                          Olmo2Config, Olmo3Config, Phi3Config, Qwen2Config, Qwen3_5TextConfig, Qwen3Config, SmolLM3Config, Starcoder2Config)
from transformers.utils.logging import disable_progress_bar

HERE = os.path.dirname(os.path.abspath(__file__))
RANK, ALPHA, RATE, LENGTH, ROWS = 4, 12, 3e-3, 64, 4
SPLIT = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SIZES = {"hidden_size": 48, "intermediate_size": 112, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 264, "max_position_embeddings": 256, "initializer_range": 0.06, "tie_word_embeddings": False}
WIDE = {"hidden_size": 128, "intermediate_size": 320}  # over NF4: bitsandbytes' kernels for processors need rows of a multiple of 64
FAMILIES = {  # the configuration, and the matrices with adapters
    "llama": (LlamaConfig, {"attention_bias": True}, SPLIT),
    "qwen3": (Qwen3Config, {"head_dim": 16}, SPLIT),
    "phi3": (Phi3Config, {"pad_token_id": 0}, ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]),
    "gemma2": (Gemma2Config, {"head_dim": 16, "sliding_window": 24, "tie_word_embeddings": True}, SPLIT),
    "gemma3": (Gemma3TextConfig, {"head_dim": 16, "sliding_window": 24, "tie_word_embeddings": True}, SPLIT),
    "mistral": (MistralConfig, {"sliding_window": 24}, SPLIT),
    "qwen2": (Qwen2Config, {}, SPLIT),
    "smollm3": (SmolLM3Config, {"no_rope_layers": [1, 0], "pad_token_id": 0}, SPLIT),
    "olmo2": (Olmo2Config, {}, SPLIT),
    "olmo3": (Olmo3Config, {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]}, SPLIT),
    "gpt2": (GPT2Config, {"n_embd": 48, "n_inner": 112, "n_layer": 2, "n_head": 4, "n_positions": 256, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
                          "attn_pdrop": 0.0, "tie_word_embeddings": True}, ["c_attn", "c_proj", "c_fc"]),
    "glm4": (Glm4Config, {"head_dim": 16, "pad_token_id": 0}, [*SPLIT[:4], "gate_up_proj", "down_proj"]),
    "qwen3_5_text": (Qwen3_5TextConfig, {"head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24,
                                         "layer_types": ["linear_attention", "full_attention"]}, [*SPLIT, "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"]),
    "starcoder2": (Starcoder2Config, {}, [*SPLIT[:4], "c_fc", "c_proj"]),
    "granite": (GraniteConfig, {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5}, SPLIT),
}
VARIANTS = {
    "lora": ({}, {}),
    "rslora": ({"rslora": True}, {"use_rslora": True}),
    "dora": ({"dora": True}, {"use_dora": True}),
    "pissa": ({"init": "pissa", "pissa_iterations": 0}, {"init_lora_weights": "pissa"}),
    "pissa_decay": ({"init": "pissa", "pissa_iterations": 0}, {"init_lora_weights": "pissa"}),  # with weight decay
    # Linear attention trained whole: one module with others in it, and with parameters of its own.
    "whole": ({"modules_to_save": ["linear_attn"], "target": SPLIT}, {"modules_to_save": ["linear_attn"]}),
    "qlora": ({"quantize": "nf4"}, {}),
    "qdora": ({"quantize": "nf4", "dora": True}, {"use_dora": True}),
}
STRATEGIES = ["ddp", "zero1", "zero2", "zero3", "hybrid"]

worker, build = sys.argv[1], sys.argv[2]
options = dict(a.split("=") for a in sys.argv[3:])
steps = int(options.get("steps", 200))
variants = options.get("variants", "lora,rslora,dora,pissa,pissa_decay").split(",")
quantized = any("quantize" in VARIANTS[v][0] for v in variants)
assert all(("quantize" in VARIANTS[v][0]) == quantized for v in variants), "variants over NF4 are compared by themselves"
strategies = options.get("strategies", "all")
strategies = STRATEGIES if strategies == "all" else [s for s in strategies.split(",") if s]
families = options.get("families", "llama")
families = list(FAMILIES) if families == "all" else families.split(",")
source = os.path.join(HERE, "..", "..")
torch.set_num_threads(1)
disable_progress_bar()


def make_base(directory, family):
    torch.manual_seed(1)
    config, own, _ = FAMILIES[family]
    sizes = SIZES if family != "gpt2" else {key: SIZES[key] for key in ("vocab_size", "initializer_range")}  # its others have names of their own
    sizes = sizes | own
    if quantized:
        sizes |= {"n_embd": WIDE["hidden_size"], "n_inner": WIDE["intermediate_size"]} if family == "gpt2" else WIDE
    model = AutoModelForCausalLM.from_config(config(**sizes), dtype=torch.float32)
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(p, std=0.05)
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(HERE, "bytes", name), directory)


def read_rows(tmp):
    out = subprocess.run([f"{build}/tests/engine/rows_dump", f"{tmp}/base", f"{tmp}/cache", "text", "default", str(LENGTH), str(ROWS), "42",
                          str(steps), f"{source}/LICENSE"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line)["rows"] for line in out.splitlines()]


def run_worker(tmp, name, lora, ranks=1, strategy="ddp", max_steps=steps, rate=RATE, decay=0.0):
    config = {"task": "pretrain", "directory": tmp, "model": {"path": f"{tmp}/base"},
              "data": {"path": [f"{source}/LICENSE"], "format": "text", "max_length": LENGTH, "packing": True, "cache_dir": f"{tmp}/cache"},
              "train": {"learning_rate": rate, "schedule": "constant", "micro_batch": 2, "accumulation": ROWS // 2 // ranks, "shuffle": True,
                        "precision": "fp32", "max_steps": max_steps, "weight_decay": decay},
              "lora": dict({"rank": RANK, "alpha": ALPHA}, **lora),
              "parallel": {"strategy": strategy, **({"shard_degree": 1} if strategy == "hybrid" else {})},
              "output": {"dir": f"{tmp}/{name}", "log_steps": 1, "save_steps": 0}}
    with open(f"{tmp}/{name}.json", "w") as f:
        json.dump(config, f)
    os.makedirs(f"{tmp}/meet-{name}")
    started = []
    for rank in range(ranks):
        env = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "DTRAIN_ATTEMPT": "1", "DTRAIN_CONFIG": f"{tmp}/{name}.json",
               "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
               "DTRAIN_RENDEZVOUS_DIR": f"{tmp}/meet-{name}"}
        started.append(subprocess.Popen([worker], env=env, stdout=open(f"{tmp}/{name}-{rank}.log", "w"), stderr=subprocess.STDOUT))
    if any([p.wait() for p in started]):
        sys.exit(f"{name}: " + open(f"{tmp}/{name}-0.log").read())
    with open(f"{tmp}/{name}/metrics.jsonl") as f:
        return [line["loss"] for line in map(json.loads, f) if "loss" in line]


def row_losses(model, rows):
    """The sum over the rows' targets, and their number. Documents of a packed row do not see each other."""
    total, count = 0.0, 0
    for row in rows:
        for begin, end in zip(row["starts"], row["starts"][1:]):
            ids, targets = torch.tensor([row["ids"][begin:end]]), torch.tensor(row["targets"][begin:end])
            counted = int((targets >= 0).sum())
            if counted:
                logits = model(input_ids=ids).logits[0]
                total = total + torch.nn.functional.cross_entropy(logits, targets, reduction="sum", ignore_index=-100)
                count += counted
    return total, count


def new_base(tmp):
    # Eager attention: gemma2's caps of scores need it.
    how = {"dtype": torch.float32, "attn_implementation": "eager"}
    if not quantized:
        return AutoModelForCausalLM.from_pretrained(f"{tmp}/base", **how)
    nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    # A model that does not train has bitsandbytes compute in bf16 where the processor can, in matrices whose input needs no gradient.
    return AutoModelForCausalLM.from_pretrained(f"{tmp}/base", quantization_config=nf4, device_map="cpu", **how).train()


def train_peft(model, batches, decay):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=decay)
    losses = []
    for rows in batches:
        optimizer.zero_grad()
        total, count = row_losses(model, rows)
        loss = total / count
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def worst(ours, theirs):
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def dump(tmp, name, adapter, batch, program="grad_dump"):
    """Gradients, losses and logits of one batch with an adapter, of this engine."""
    with open(f"{tmp}/{name}.batch", "w") as f:
        json.dump({"documents": [batch]}, f)
    subprocess.run([program, f"{tmp}/base", f"{tmp}/{name}.batch", f"{tmp}/{name}.dump", adapter], check=True)
    return load_file(f"{tmp}/{name}.dump/model.safetensors")


def our_name(name):
    return name.replace(".default", "").replace("lora_magnitude_vector.weight", "lora_magnitude_vector")


def compare_gradients(tmp, variant, model, batch, targets):
    """With B that is not zero, so that A has gradients."""
    torch.manual_seed(3)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(std=0.05)
    adapter = f"{tmp}/{variant}-random"
    model.save_pretrained(adapter)
    for p in model.parameters():
        p.grad = None
    logits = model(input_ids=torch.tensor([batch])).logits[0]
    torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(batch[1:])).backward()
    found = {}
    for where, program in [("gradients", f"{build}/tests/engine/grad_dump"), ("gradients over the emulator", f"{build}/tests/simt/grad_dump")]:
        if not os.path.exists(program):
            continue
        ours, seen, far = dump(tmp, f"{variant}-gradients", adapter, batch, program), 0, 0.0
        for name, p in model.named_parameters():
            if p.requires_grad:
                difference = (ours[our_name(name)].reshape(p.grad.shape) - p.grad).abs().max() / p.grad.abs().max()
                far, seen = max(far, difference.item()), seen + 1
        adapted = sum(name.rsplit(".", 1)[-1] in targets for name, _ in model.named_modules())
        assert adapted >= len(targets) and seen >= 2 * adapted, f"{variant}: {seen} gradients"
        assert far < 1e-4, f"{variant}: {where} differ by {far:.1e}"
        off = (ours["logits"] - logits.detach()).abs().max().item()
        assert off < 1e-4, f"{variant}: logits of PEFT's adapter differ by {off:.1e} ({where})"
        found[where] = far
    return found


def check(tmp, variant, batches, targets):
    lora, theirs = VARIANTS[variant]
    batch = batches[0][0]["ids"][:48]
    decay = 10.0 if variant == "pissa_decay" else 0.0
    pissa, targets = "init" in lora, lora.get("target", targets)
    ours = run_worker(tmp, variant, lora, decay=decay)
    if pissa:
        torch.manual_seed(5)
        model = get_peft_model(new_base(tmp), LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets, task_type="CAUSAL_LM", **theirs))
    else:  # from the same A, and with DoRA the same magnitudes
        run_worker(tmp, f"{variant}-start", lora, max_steps=1, rate=0.0)
        model = PeftModel.from_pretrained(new_base(tmp), f"{tmp}/{variant}-start", is_trainable=True)
        fresh = get_peft_model(new_base(tmp), LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets, task_type="CAUSAL_LM", **theirs))
        for (name, a), (_, b) in zip(model.named_parameters(), fresh.named_parameters(), strict=True):
            if "lora_A" not in name:
                assert torch.allclose(a, b, rtol=1e-5, atol=1e-6), f"{variant}: {name} begins elsewhere"
    theirs_losses = train_peft(model, batches, decay)
    assert theirs_losses[-1] < theirs_losses[0] - 0.02 * min(steps, 20) / 20, f"{variant}: PEFT learns nothing: {theirs_losses}"
    results = {"1 rank": worst(ours, theirs_losses)}
    for strategy in strategies:
        results[strategy] = worst(run_worker(tmp, f"{variant}-{strategy}", lora, ranks=2, strategy=strategy, decay=decay), theirs_losses)
    for what, difference in results.items():
        assert difference < 1e-3, f"{variant}, {what}: losses differ from PEFT's by {difference:.1e}"
    words = ", ".join(f"{k} {v:.1e}" for k, v in results.items())
    learned = f"{family}, {variant}: {steps} steps from {theirs_losses[0]:.3f} to {theirs_losses[-1]:.3f}, differences: {words}"
    if quantized:
        print(learned, flush=True)
        return
    loaded = PeftModel.from_pretrained(new_base(tmp), f"{tmp}/{variant}")
    with torch.no_grad():
        in_peft = loaded(input_ids=torch.tensor([batch])).logits[0]
    here = dump(tmp, f"{variant}-ours", f"{tmp}/{variant}", batch, f"{build}/tests/engine/grad_dump")["logits"]
    off = (here - in_peft).abs().max().item()
    assert off < 1e-4, f"{variant}: logits of our adapter in PEFT differ by {off:.1e}"
    gradients = {} if pissa or variant == "whole" else compare_gradients(tmp, variant, model, batch, targets)
    words = f"; logits in PEFT {off:.1e}" + "".join(f"; {k} {v:.1e}" for k, v in gradients.items())
    print(learned + words, flush=True)


for family in families:
    with tempfile.TemporaryDirectory() as tmp:
        make_base(f"{tmp}/base", family)
        batches = read_rows(tmp)
        for variant in variants:
            check(tmp, variant, batches, FAMILIES[family][2])
