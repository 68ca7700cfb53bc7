# SPDX-License-Identifier: Apache-2.0
"""ppo.py make TOKENIZER DIR                  models and prompts, as grpo.py makes them
ppo.py replay DIR RATE NAME MODEL KEY=VALUE…  trains the model with a value head in transformers on the completions that the reward program of the run has
                                              recorded (DIR/NAME.asked), with AdamW and TRL's definitions of advantages and losses, and compares losses, gradient
                                              norms, measurements, weights and the head with those of DIR/NAME-out
ppo.py replays FILE                           the same for each line of the file, which has the arguments"""
import glob
import json
import math
import os
import sys

import safetensors.torch
import torch
import transformers as tf

from grpo import make, mini_batches, of_tokens, replays, score


def forward(model, head, one, temperature):
    """Log-probabilities of the completion's tokens, and the values of what is in front of each. Both heads read the same."""
    at = slice(len(one["prompt_ids"]) - 1, -1)
    out = model(input_ids=torch.tensor(one["prompt_ids"] + one["completion_ids"])[None], output_hidden_states=True)
    p = torch.log_softmax(out.logits[0, at] / temperature, -1)
    return of_tokens(p, one), None if head is None else out.hidden_states[-1][0, at] / temperature @ head


def advantages_of(o, a):
    """Generalized advantage estimation; the reward is the last token's."""
    rewards = -o["beta"] * (a["then"] - a["reference"]) if o["beta"] else torch.zeros_like(a["then"])
    rewards[-1] += a["reward"]
    advantages, last = torch.zeros_like(rewards), 0.0
    for t in reversed(range(len(rewards))):
        following = a["values"][t + 1] if t + 1 < len(rewards) else 0.0
        last = rewards[t] + o["gamma"] * following - a["values"][t] + o["gamma"] * o["lam"] * last
        advantages[t] = last
    return advantages


def replay(directory, rate, name, which, *settings):
    o = dict(max_new_tokens=12, temperature=1.0, beta=0.05, epsilon=0.2, iterations=4, mini=1, generations=1, gamma=1.0, lam=0.95, weight=0.1, bound=0.2, value_rate=0.0, scores=0, penalty=0.0, mask=0)
    for s in settings:
        key, value = s.split("=")
        o[key] = type(o[key])(value)
    load = lambda path: tf.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    model, first = load(f"{directory}/{which}"), load(f"{directory}/{which}")
    head = torch.nn.Parameter(torch.zeros(model.config.hidden_size))
    begin = {k: p.detach().clone() for k, p in model.named_parameters()}
    optimizer = torch.optim.AdamW([{"params": list(model.parameters())}, {"params": [head], "lr": o["value_rate"] or float(rate)}], lr=float(rate), weight_decay=0.0)
    with open(f"{directory}/{name}.asked") as f:
        asked = [json.loads(x) for x in f]
    with open(f"{directory}/{name}-out/metrics.jsonl") as f:
        ours = [x for x in map(json.loads, f) if x.get("loss") is not None]
    worst = dict.fromkeys(("loss", "grad_norm"), 0.0)
    steps = 0
    while asked:
        n = asked[0]["count"]
        batch, asked = asked[:n], asked[n:]
        for a in batch if o["scores"] else []:
            a["reward"] += score(directory, a)
        for a in batch:
            a["reward"] -= 0.0 if a["finished"] else o["penalty"]
        counted = [a for a in batch if a["finished"] or not o["mask"]]
        with torch.no_grad():
            for a in counted:
                a["then"], a["values"] = forward(model, head, a, o["temperature"])
                a["reference"] = forward(first, None, a, o["temperature"])[0]
                a["advantages"] = advantages_of(o, a)
                a["returns"] = a["advantages"] + a["values"]
            every = torch.cat([a["advantages"] for a in counted])
            for a in counted:
                a["advantages"] = (a["advantages"] - every.mean()) / (every.var() + 1e-8).sqrt()
        for part in o["iterations"] * mini_batches(batch, o["mini"], o["generations"]):
            counted, n = [a for a in part if a["finished"] or not o["mask"]], len(part)
            tokens = sum(len(a["completion_ids"]) for a in counted)
            sums = dict.fromkeys(("policy", "value", "clipped", "value_clipped", "moved"), 0.0)
            loss, returns, errors = torch.zeros(()), [], []
            for a in counted:
                now, values = forward(model, head, a, o["temperature"])
                ratio, adv = (now - a["then"]).exp(), a["advantages"]
                sides = -adv * ratio, -adv * ratio.clamp(1 - o["epsilon"], 1 + o["epsilon"])
                policy = torch.max(*sides)
                bounded = torch.min(torch.max(values, a["values"] - o["bound"]), a["values"] + o["bound"]) if o["bound"] else values
                squares = (values - a["returns"]) ** 2, (bounded - a["returns"]) ** 2
                value = 0.5 * torch.max(*squares)
                loss = loss + (policy.sum() + o["weight"] * value.sum()) / tokens
                for key, x in ("policy", policy), ("value", value), ("clipped", (sides[1] > sides[0]).float()), ("value_clipped", (squares[1] > squares[0]).float()), \
                              ("moved", 0.5 * (now - a["then"]) ** 2):
                    sums[key] += x.sum().item() / tokens
                returns.append(a["returns"])
                errors.append((values - a["returns"]).detach())
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_([*model.parameters(), head], 1.0).item()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            m = ours[steps]
            steps += 1
            for key, value in ("loss", loss.item()), ("grad_norm", norm):
                worst[key] = max(worst[key], abs(m[key] - value) / (max(value, 1e-3) if key == "grad_norm" else 1))
            rewards = torch.tensor([a["reward"] for a in part], dtype=torch.float64)
            expected = {"reward": rewards.mean(), "reward_std": rewards.std() if n > 1 else 0.0, "completions/mean_length": sum(len(a["completion_ids"]) for a in part) / n,
                        "completions/clipped_ratio": sum(not a["finished"] for a in part) / n, "objective/entropy": -sum(a["then"].sum().item() for a in counted) / max(len(counted), 1),
                        "loss/policy_avg": sums["policy"], "loss/value_avg": sums["value"], "policy/approxkl_avg": sums["moved"],
                        "policy/clipfrac_avg": sums["clipped"], "val/clipfrac_avg": sums["value_clipped"],
                        "val/explained_variance": 1 - (torch.cat(errors).var(unbiased=False) / torch.cat(returns).var(unbiased=False)).item()}
            if o["beta"]:
                expected["objective/kl"] = sum((a["then"] - a["reference"]).sum().item() for a in counted) / max(len(counted), 1)
            for key, value in expected.items():
                assert math.isclose(m[key], float(value), rel_tol=1e-3, abs_tol=3 / tokens if "clipfrac" in key else 2e-5), (steps, key, m[key], value)
            assert ("objective/kl" in m) == (o["beta"] > 0)
    assert steps == len(ours), (steps, len(ours))
    own = dict(load(f"{directory}/{name}-out").named_parameters())
    off = max(((own[k] - p).norm() / (p - begin[k]).norm()).item() for k, p in model.named_parameters() if (p - begin[k]).norm() > 0)
    # The head is in the state of the last checkpoint alone.
    state = safetensors.torch.load_file(glob.glob(f"{directory}/{name}-out/checkpoint-{steps}/dtrain/rank-*.safetensors")[0])
    of_head = ((state["master.v_head.summary.weight@0"] - head).norm() / head.norm()).item()
    assert not any("v_head" in k for k in safetensors.torch.load_file(f"{directory}/{name}-out/checkpoint-{steps}/model.safetensors"))
    print(f"{name}: {steps} steps; greatest difference of the loss {worst['loss']:.1e}, the gradient norm {worst['grad_norm']:.1e} of it; of a tensor {off:.1e} of its way, "
          f"of the head {of_head:.1e}; clipped at most {max(m['policy/clipfrac_avg'] for m in ours):.3f}, values {max(m['val/clipfrac_avg'] for m in ours):.3f}; "
          f"explained at the end {ours[-1]['val/explained_variance']:.2f}")
    slack = float(os.environ.get("SLACK", 1))
    assert worst["loss"] < slack * 2e-5 and worst["grad_norm"] < slack * 2e-3 and off < slack * 0.02 and of_head < slack * 0.02


if __name__ == "__main__":
    {"make": make, "replay": replay, "replays": lambda file: replays(file, replay)}[sys.argv[1]](*sys.argv[2:])
