# SPDX-License-Identifier: Apache-2.0
"""grpo.py make TOKENIZER DIR                  models, DIR/NAME, and prompts, DIR/prompts.jsonl
grpo.py more DIR                               more prompts, DIR/more.jsonl
grpo.py replay DIR RATE NAME MODEL KEY=VALUE…  trains the model in transformers on the completions that the reward program of the run has recorded
                                               (DIR/NAME.asked), with AdamW and TRL's definitions of the loss, and compares losses, gradient norms,
                                               measurements and weights with those of DIR/NAME-out; also whether the tokens are those that the model's
                                               probabilities and the run's random numbers give
grpo.py replays FILE                           the same for each line of the file, which has the arguments"""
import json
import math
import os
import random
import shutil
import sys

import torch
import transformers as tf

tf.utils.logging.disable_progress_bar()
# PyTorch would not train the embedding of the token for padding: one that no text has.
COMMON = dict(max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=263, hidden_size=64, num_attention_heads=4, num_key_value_heads=2)
MODELS = {
    # A range of weights with which the probabilities are far from even.
    "llama": lambda: tf.LlamaConfig(**COMMON, vocab_size=264, intermediate_size=96, num_hidden_layers=2, initializer_range=0.1),
    "tied": lambda: tf.Qwen3Config(**COMMON, vocab_size=264, intermediate_size=96, num_hidden_layers=2, head_dim=16, initializer_range=0.1, tie_word_embeddings=True),
    "gemma2": lambda: tf.Gemma2Config(**COMMON, vocab_size=264, intermediate_size=96, num_hidden_layers=3, head_dim=16, sliding_window=7, initializer_range=0.1,
                                      attn_logit_softcapping=5.0, final_logit_softcapping=3.0, query_pre_attn_scalar=16),
    "qwen3_moe": lambda: tf.Qwen3MoeConfig(**COMMON, vocab_size=280, intermediate_size=96, moe_intermediate_size=48, num_hidden_layers=2, head_dim=16,
                                           num_experts=6, num_experts_per_tok=3, initializer_range=0.1),
    "linear": lambda: tf.Qwen3_5TextConfig(**COMMON, vocab_size=264, intermediate_size=96, num_hidden_layers=2, head_dim=16, initializer_range=0.1,
                                           linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
                                           layer_types=["linear_attention", "full_attention"]),
}


def make(tokenizer, directory):
    for name, config in MODELS.items():
        torch.manual_seed(len(name))
        tf.AutoModelForCausalLM.from_config(config()).save_pretrained(f"{directory}/{name}")
        for f in "tokenizer.json", "tokenizer_config.json":
            shutil.copy(f"{tokenizer}/{f}", f"{directory}/{name}")
    config = tf.Qwen3Config(**COMMON, vocab_size=270, intermediate_size=96, num_hidden_layers=2, head_dim=16, initializer_range=0.1, num_labels=1)
    tf.AutoModelForSequenceClassification.from_config(config).save_pretrained(f"{directory}/reward-model")
    write_prompts(f"{directory}/prompts.jsonl", 10)


def more(directory):
    write_prompts(f"{directory}/more.jsonl", 18)


def write_prompts(path, n):
    rng = random.Random(1)
    words = "a model learns from the rewards of its own completions".split()
    with open(path, "w") as f:
        for i in range(n):
            f.write(json.dumps({"prompt": " ".join(rng.choices(words, k=rng.randint(1, 4))), **({"completion": str(i)} if i % 3 else {})}) + "\n")


# ---- the random numbers of a run: XXH64 of the place, and splitmix64 ----
MASK = (1 << 64) - 1
P1, P2, P3, P4, P5 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def rotate(x, n):
    return (x << n | x >> (64 - n)) & MASK


def xxh64(words, seed):
    """Of less than four words."""
    h = (seed + P5 + 8 * len(words)) & MASK
    for w in words:
        h = (rotate(h ^ rotate(w * P2 & MASK, 31) * P1 & MASK, 27) * P1 + P4) & MASK
    for shift, factor in (33, P2), (29, P3), (32, 1):
        h = (h ^ h >> shift) * factor & MASK
    return h


def uniform(seed, place):
    z = (seed * 0x9E3779B97F4A7C15 + (place + 1) * 0xD1B54A32D192ED03) & MASK
    for _ in range(2):
        z = (z + 0x9E3779B97F4A7C15) & MASK
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        z ^= z >> 31
    return (z >> 11) * 2.0 ** -53


def log_probabilities(model, one, temperature):
    """Of all ids, at each token of the completion."""
    ids = torch.tensor(one["prompt_ids"] + one["completion_ids"])
    return torch.log_softmax(model(input_ids=ids[None]).logits[0, len(one["prompt_ids"]) - 1:-1] / temperature, -1)


def of_tokens(p, one):
    return p.gather(1, torch.tensor(one["completion_ids"])[:, None])[:, 0]


def loss_of(o, now, then, reference, advantage, length, totals):
    """TRL's, of one completion."""
    log_ratio = now - then
    if o["level"] == "sequence":
        log_ratio = log_ratio.mean() + 0 * log_ratio
    ratio = log_ratio.exp()
    if o["loss"] == "cispo":
        per_token = -ratio.clamp(max=o["high"]).detach() * advantage * now
        clipped = ((ratio > o["high"]) & (advantage > 0)).float()
    else:
        per_token = -torch.min(ratio * advantage, ratio.clamp(1 - o["low"], 1 + o["high"]) * advantage)
        clipped = (((ratio < 1 - o["low"]) & (advantage < 0)) | ((ratio > 1 + o["high"]) & (advantage > 0))).float()
    kl = torch.zeros_like(now)
    if o["beta"]:
        kl = (reference - now).exp() - (reference - now) - 1
        per_token = per_token + o["beta"] * kl
    scale = {"grpo": length * totals["completions"], "dr_grpo": o["max_new_tokens"] * totals["completions"]}.get(o["loss"], totals["counted"])
    return per_token.sum() / scale, kl.sum().item(), clipped.sum().item()


def advantages(o, rewards):
    groups = torch.tensor(rewards, dtype=torch.float64).view(-1, o["generations"])
    scale = {"group": groups.std(1, keepdim=True) + 1e-4, "batch": groups.std() + 1e-4, "none": 1.0}[o["scale"]]
    return ((groups - groups.mean(1, keepdim=True)) / scale).flatten().tolist()


def mini_batches(batch, parts, generations):
    """The completions of the same prompts stay together."""
    prompts = len(batch) // generations
    at = lambda i: i * prompts // parts if prompts >= parts else i % prompts
    ends = [at(i + 1) if prompts >= parts else at(i) + 1 for i in range(parts)]
    return [batch[at(i) * generations:end * generations] for i, end in enumerate(ends)]


def score(directory, one):
    """The score of a completion, behind which is what the template writes: the end of a text, and a line break."""
    global REWARD_MODEL
    REWARD_MODEL = REWARD_MODEL or tf.AutoModelForSequenceClassification.from_pretrained(f"{directory}/reward-model", dtype=torch.float32).eval()
    with open(f"{directory}/llama/tokenizer.json") as f:
        line_break = json.load(f)["model"]["vocab"]["\u010a"]
    ids = one["prompt_ids"] + one["completion_ids"] + ([] if one["finished"] else [2]) + [line_break]
    with torch.no_grad():
        return REWARD_MODEL(input_ids=torch.tensor([ids])).logits[0, 0].item()


REWARD_MODEL = None


def replay(directory, rate, name, which, *settings):
    o = dict(generations=4, max_new_tokens=12, temperature=1.0, beta=0.0, low=0.2, high=0.2, iterations=1, mini=1, scores=0, penalty=0.0, loss="dapo", level="token", scale="group", mask=0, seed=7, top_k=0)
    for s in settings:
        key, value = s.split("=")
        o[key] = type(o[key])(value)
    load = lambda path: tf.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    with open(f"{directory}/{which}/tokenizer.json") as f:
        t = json.load(f)
    ids = 1 + max([*t["model"]["vocab"].values(), *(x["id"] for x in t["added_tokens"])])
    model, first = load(f"{directory}/{which}"), load(f"{directory}/{which}")
    begin = {k: p.detach().clone() for k, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=float(rate), weight_decay=0.0)
    with open(f"{directory}/{name}.asked") as f:
        asked = [json.loads(x) for x in f]
    with open(f"{directory}/{name}-out/metrics.jsonl") as f:
        ours = [x for x in map(json.loads, f) if x.get("loss") is not None]
    worst = dict.fromkeys(("loss", "grad_norm", "kl"), 0.0)
    tokens = other = steps = number = 0
    while asked:
        n = asked[0]["count"]
        batch, asked = asked[:n], asked[n:]
        with torch.no_grad():
            for i, a in enumerate(batch):
                p = log_probabilities(model, a, o["temperature"])
                seed = xxh64([number, a["row"], i % o["generations"]], o["seed"])
                # Only ids of the tokenizer are chosen.
                for at, (q, id) in enumerate(zip(p[:, :ids].double().exp(), a["completion_ids"])):
                    tokens += 1
                    if o["top_k"]:
                        other += (q > q[id]).sum().item() >= o["top_k"]
                    else:
                        chosen = torch.searchsorted(q.cumsum(0), uniform(seed, len(a["prompt_ids"]) + at) * q.sum(), right=True).item()
                        other += chosen != id
                a["then"], a["reference"] = of_tokens(p, a), of_tokens(log_probabilities(first, a, o["temperature"]), a)
                assert a["finished"] == (a["completion_ids"][-1] == 2) and (a["finished"] or len(a["completion_ids"]) == o["max_new_tokens"]), a
        for a in batch if o["scores"] else []:
            a["reward"] += score(directory, a)
        for a in batch:
            a["reward"] -= 0.0 if a["finished"] else o["penalty"]
        for a, advantage in zip(batch, advantages(o, [a["reward"] for a in batch])):
            a["advantage"] = advantage
        for part in o["iterations"] * mini_batches(batch, o["mini"], o["generations"]):
            counted = [a for a in part if a["finished"] or not o["mask"]]
            totals = {"completions": len(part), "counted": max(sum(len(a["completion_ids"]) for a in counted), 1)}
            loss, kl, clipped = torch.zeros(()), 0.0, 0.0
            for a in counted:
                of_one = loss_of(o, of_tokens(log_probabilities(model, a, o["temperature"]), a), a["then"], a["reference"], a["advantage"], len(a["completion_ids"]), totals)
                loss, kl, clipped = loss + of_one[0], kl + of_one[1], clipped + of_one[2]
            if counted:
                loss.backward()
            norm = torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 1.0).item() if counted else 0.0
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            m = ours[steps]
            steps += 1
            for key, value in ("loss", loss.item()), ("grad_norm", norm), ("kl", kl / totals["counted"] if o["beta"] else 0.0):
                worst[key] = max(worst[key], abs(m.get(key, 0.0) - value) / (max(value, 1e-3) if key == "grad_norm" else 1))
            groups = torch.tensor([a["reward"] for a in part]).view(-1, o["generations"])
            expected = {"reward": groups.mean(), "reward_std": groups.std(1).mean(), "frac_reward_zero_std": ((groups == groups[:, :1]).all(1)).float().mean(),
                        "completions/mean_length": sum(len(a["completion_ids"]) for a in part) / len(part),
                        "completions/clipped_ratio": sum(not a["finished"] for a in part) / len(part), "clip_ratio/region_mean": clipped / totals["counted"]}
            for key, value in expected.items():
                assert math.isclose(m[key], float(value), rel_tol=1e-5, abs_tol=3 / totals["counted"] if key == "clip_ratio/region_mean" else 1e-6), (steps, key, m[key], value)
        number += 1
    assert steps == len(ours), (steps, len(ours))
    own = dict(load(f"{directory}/{name}-out").named_parameters())
    off = max(((own[k] - p).norm() / (p - begin[k]).norm()).item() for k, p in model.named_parameters() if (p - begin[k]).norm() > 0)
    print(f"{name}: {steps} steps; greatest difference of the loss {worst['loss']:.1e}, the gradient norm {worst['grad_norm']:.1e} of it, kl {worst['kl']:.1e}; of a tensor "
          f"{off:.1e} of its way; {other} of {tokens} tokens are others; clipped at most {max(m['clip_ratio/region_mean'] for m in ours):.3f}")
    # AdamW makes a step of the whole learning rate of a gradient that is next to nothing, whose sign is the rounding's: each device has others.
    slack = float(os.environ.get("SLACK", 1))
    assert worst["loss"] < slack * 2e-5 and worst["grad_norm"] < slack * 2e-3 and worst["kl"] < slack * 1e-5 and off < slack * 0.02 and other <= slack * tokens / 200


def replays(file, replay):
    """All of them in one process: PyTorch takes seconds to begin."""
    with open(file) as f:
        for line in f:
            replay(*line.split())


if __name__ == "__main__":
    {"make": make, "more": more, "replay": replay, "replays": lambda file: replays(file, replay)}[sys.argv[1]](*sys.argv[2:])
