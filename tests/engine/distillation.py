# SPDX-License-Identifier: Apache-2.0
"""distillation.py make TOKENIZER DIR   a student, DIR/student, teachers of other families, sizes and vocabularies, and conversations, DIR/chats.json
distillation.py compare DIR RATE NAME TEACHER WEIGHT TEMPERATURE [NAME TEACHER WEIGHT TEMPERATURE…]
                                     trains the student in transformers on the rows (DIR/NAME.rows, rows_dump's lines) with AdamW and the loss of
                                     knowledge distillation, and compares losses and weights with those of DIR/NAME-out"""
import json
import random
import shutil
import sys

import torch
import transformers as tf

tf.utils.logging.disable_progress_bar()
COMMON = dict(max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0)
# A range of weights with which the probabilities of the teachers are far from even.
TEACHER = dict(**COMMON, initializer_range=0.15, hidden_size=64, num_attention_heads=4)
MODELS = {
    "student": lambda: tf.LlamaConfig(**COMMON, vocab_size=264, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2),
    "teacher": lambda: tf.Qwen3Config(**TEACHER, vocab_size=300, intermediate_size=160, num_hidden_layers=3, num_key_value_heads=4, head_dim=32),
    "gemma2": lambda: tf.Gemma2Config(**TEACHER, vocab_size=264, intermediate_size=96, num_hidden_layers=3, num_key_value_heads=2, head_dim=16, sliding_window=7,
                                      attn_logit_softcapping=5.0, final_logit_softcapping=3.0, query_pre_attn_scalar=16),
    "gpt2": lambda: tf.GPT2Config(vocab_size=262, n_positions=128, n_embd=96, n_head=3, n_layer=2, bos_token_id=1, eos_token_id=2, initializer_range=0.15),
    "qwen3_moe": lambda: tf.Qwen3MoeConfig(**TEACHER, vocab_size=280, intermediate_size=96, moe_intermediate_size=48, num_hidden_layers=2, num_key_value_heads=2,
                                           head_dim=16, num_experts=6, num_experts_per_tok=3),
}


def save(tokenizer, directory, name, change=None):
    """The files of a tokenizer, the first one as another program would have written it."""
    with open(f"{tokenizer}/tokenizer.json") as f:
        t = json.load(f)
    if change:
        change(t)
    with open(f"{directory}/{name}/tokenizer.json", "w") as f:
        json.dump(t, f)
    shutil.copy(f"{tokenizer}/tokenizer_config.json", f"{directory}/{name}")


def stranger(t):
    """Another vocabulary, larger than the models'."""
    v = t["model"]["vocab"]
    v["a"], v["b"] = v["b"], v["a"]
    for i in range(100):
        v[f"<more{i}>"] = 400 + i


def renamed(t):
    """Another name of an added token."""
    old, new = t["added_tokens"][-1]["content"], "<|renamed|>"
    t["added_tokens"][-1]["content"] = new
    if old in t["model"]["vocab"]:
        t["model"]["vocab"][new] = t["model"]["vocab"].pop(old)


def make(tokenizer, directory):
    for name, config in MODELS.items():
        torch.manual_seed(len(name))
        # Some of them in several files.
        tf.AutoModelForCausalLM.from_config(config()).save_pretrained(f"{directory}/{name}", max_shard_size="10GB" if name == "student" else "150KB")
        save(tokenizer, directory, name)
    for name, change in ("stranger", stranger), ("renamed", renamed):
        shutil.copytree(f"{directory}/teacher", f"{directory}/{name}")
        save(tokenizer, directory, name, change)
    config = MODELS["teacher"]()
    config.num_labels = 1
    tf.AutoModelForSequenceClassification.from_config(config).save_pretrained(f"{directory}/reward")
    save(tokenizer, directory, "reward")
    rng = random.Random(1)
    words = "a model learns from the probabilities of another one as well as from the text".split()
    with open(f"{directory}/chats.json", "w") as f:
        json.dump([{"instruction": " ".join(rng.choices(words, k=rng.randint(2, 9))), "output": " ".join(rng.choices(words, k=rng.randint(1, 6)))}
                   for _ in range(60)], f)


def step_loss(student, teacher, rows, weight, temperature):
    total, counted = 0.0, 0
    for row in rows:
        for a, b in zip(row["starts"], row["starts"][1:]):
            ids, targets = torch.tensor(row["ids"][a:b]), torch.tensor(row["targets"][a:b])
            chosen = targets >= 0
            if not chosen.any():
                continue
            x = student(input_ids=ids[None]).logits[0][chosen]
            with torch.no_grad():
                t = teacher(input_ids=ids[None]).logits[0][chosen][:, :x.shape[-1]]
            both = x[:, :t.shape[-1]]
            hard = torch.nn.functional.cross_entropy(x, targets[chosen], reduction="sum")
            soft = torch.nn.functional.kl_div(torch.log_softmax(both / temperature, -1), torch.softmax(t / temperature, -1), reduction="sum")
            total = total + (1 - weight) * hard + weight * temperature ** 2 * soft
            counted += int(chosen.sum())
    return total / counted


def compare(directory, rate, *runs):
    for name, teacher, weight, temperature in zip(*[iter(runs)] * 4):
        compare_one(directory, rate, name, teacher, float(weight), float(temperature))


def compare_one(directory, rate, name, which, weight, temperature):
    student, teacher = (tf.AutoModelForCausalLM.from_pretrained(f"{directory}/{x}", dtype=torch.float32, attn_implementation="eager").eval() for x in ("student", which))
    begin = {k: p.detach().clone() for k, p in student.named_parameters()}
    optimizer = torch.optim.AdamW(student.parameters(), lr=float(rate), weight_decay=0.0)
    losses = []
    with open(f"{directory}/{name}.rows") as lines:
        for line in lines:
            loss = step_loss(student, teacher, json.loads(line)["rows"], weight, temperature)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
    with open(f"{directory}/{name}-out/metrics.jsonl") as f:
        ours = [x["loss"] for x in map(json.loads, f) if x.get("loss") is not None]
    assert len(ours) == len(losses), (len(ours), len(losses))
    worst = max(abs(a - b) for a, b in zip(ours, losses))
    own = dict(tf.AutoModelForCausalLM.from_pretrained(f"{directory}/{name}-out", dtype=torch.float32).named_parameters())
    off = max(((own[k] - p).norm() / (p - begin[k]).norm()).item() for k, p in student.named_parameters())
    print(f"{name} from {which}: {len(losses)} steps, losses {ours[0]:.4f} to {ours[-1]:.4f}; greatest difference {worst:.1e}, of a tensor {off:.1e} of its way")
    assert worst < 2e-4 and off < 0.02 and ours[-1] < ours[0]


{"make": make, "compare": compare}[sys.argv[1]](*sys.argv[2:])
