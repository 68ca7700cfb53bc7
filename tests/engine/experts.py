# SPDX-License-Identifier: Apache-2.0
"""experts.py make TOKENIZER DIR   small mixtures of experts with random weights, DIR/FAMILY, saved by transformers with the tokenizer beside them
experts.py compare DIR RATE       trains them in transformers on the rows (DIR/FAMILY.rows, rows_dump's lines) with AdamW and the loss that balances
                                  experts, and compares losses and weights with those of DIR/FAMILY-out"""
import json
import shutil
import sys

import torch
import transformers as tf

tf.utils.logging.disable_progress_bar()
COMMON = dict(vocab_size=264, hidden_size=48, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
              bos_token_id=1, eos_token_id=2, pad_token_id=0, output_router_logits=True)
FAMILIES = {
    "qwen3_moe": lambda: tf.Qwen3MoeConfig(**COMMON, head_dim=16, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, router_aux_loss_coef=0.1),
    "mixtral": lambda: tf.MixtralConfig(**COMMON, num_local_experts=4, router_aux_loss_coef=0.05),
}


def make(tokenizer, directory):
    for family, config in FAMILIES.items():
        torch.manual_seed(0)
        tf.AutoModelForCausalLM.from_config(config()).save_pretrained(f"{directory}/{family}")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(f"{tokenizer}/{name}", f"{directory}/{family}")


def step_loss(model, rows):
    """What is trained: cross-entropy and the balance of the experts, over all documents together, without their padding."""
    documents = [(r["ids"][a:b], r["targets"][a:b]) for r in rows for a, b in zip(r["starts"], r["starts"][1:])]
    width = max(len(ids) for ids, _ in documents)
    ids, mask = torch.zeros(2, len(documents), width, dtype=torch.long)
    targets = torch.full((len(documents), width), -100)
    for i, (own, wanted) in enumerate(documents):
        ids[i, :len(own)], targets[i, :len(own)], mask[i, :len(own)] = torch.tensor(own), torch.tensor(wanted), 1
    out = model(input_ids=ids, attention_mask=mask)
    loss = torch.nn.functional.cross_entropy(out.logits.view(-1, out.logits.shape[-1]), targets.view(-1), ignore_index=-100)
    return loss + model.config.router_aux_loss_coef * out.aux_loss, out.aux_loss.item()


def compare(directory, rate):
    for family in FAMILIES:
        compare_one(f"{directory}/{family}", f"{directory}/{family}.rows", rate, f"{directory}/{family}-out")


def compare_one(start, rows, rate, saved):
    model = tf.AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    begin = {k: p.detach().clone() for k, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=float(rate), weight_decay=0.0)
    losses, balances = [], []
    with open(rows) as lines:
        for line in lines:
            loss, balance = step_loss(model, json.loads(line)["rows"])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
            balances.append(balance)
    with open(f"{saved}/metrics.jsonl") as f:
        ours = [x["loss"] for x in map(json.loads, f) if x.get("loss") is not None]
    assert len(ours) == len(losses), (len(ours), len(losses))
    worst = max(abs(a - b) for a, b in zip(ours, losses))
    own = dict(tf.AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32).named_parameters())
    off = max(((own[k] - p).norm() / (p - begin[k]).norm()).item() for k, p in model.named_parameters())
    print(f"{model.config.model_type}: {len(losses)} steps, losses {ours[0]:.4f} to {ours[-1]:.4f}, balance {balances[0]:.3f} to {balances[-1]:.3f}; "
          f"greatest difference {worst:.1e}, of a tensor {off:.1e} of its way")
    assert worst < 2e-4 and off < 0.02 and ours[-1] < ours[0] - 0.5


{"make": make, "compare": compare}[sys.argv[1]](*sys.argv[2:])
