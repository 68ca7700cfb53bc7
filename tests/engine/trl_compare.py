# SPDX-License-Identifier: Apache-2.0
"""trl_compare.py WORKER DATASET_DUMP SOURCE SHARED TMP [STEPS] [NAME …]: the tasks of preferences beside TRL's trainers, from the same start on the same
rows of dpo_en_demo. Every loss, reward and margin of each step has to be within 1e-3 of TRL's. NAME: only these comparisons.

TRL's trainers are used as they are; only their data collator is replaced by one that returns the rows of dataset_dump, so that the tokens are the same."""
import inspect
import json
import logging
import os
import subprocess
import sys
import warnings

worker, dump, source, shared, tmp = sys.argv[1:6]
steps = int(sys.argv[6]) if len(sys.argv) > 6 else 100
only = sys.argv[7:]
os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HOME": os.path.join(tmp, "hf"), "TQDM_DISABLE": "1"}

import datasets
import torch
import transformers as tf
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
datasets.disable_progress_bars()
tf.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
BATCH, LENGTH, RATE, TOLERANCE = 4, 96, 5e-4, 1e-3
PAIRS = ["rewards/chosen", "rewards/rejected", "rewards/margins"]
REWARD = ["mean_reward", "margin"]
tokenizer = os.path.join(source, "tests/engine/bytes")


def check(ok, what):
    if not ok:
        sys.exit(f"FAILED: {what}")


def call(what, *command, env=None):
    r = subprocess.run(command, env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", **(env or {})}, capture_output=True, text=True)
    check(r.returncode == 0, f"{what}: ended with {r.returncode}: {r.stdout[-2000:]}{r.stderr[-2000:]}")
    return r.stdout


def write(name, value):
    path = os.path.join(tmp, name)
    with open(path, "w") as f:
        json.dump(value, f)
    return path


def make_data():
    """Pairs as they are, with the margin of a reward beside; for kto each answer in turn, the chosen one true and the rejected one false."""
    with open(os.path.join(shared, "data/sft/dpo_en_demo.json")) as f:
        records = json.load(f)
    roles = {"human": "user", "gpt": "assistant", "system": "system"}
    pairs = [{"prompt": [{"role": roles[m["from"]], "content": m["value"]} for m in r["conversations"]],
              **{k: [{"role": "assistant", "content": r[k]["value"]}] for k in ("chosen", "rejected")}, "margin": i % 3 / 4} for i, r in enumerate(records)]
    labels = [{"prompt": p["prompt"], "completion": p["rejected" if i % 2 else "chosen"], "label": i % 2 == 0} for i, p in enumerate(pairs)]
    plain = [{k: v for k, v in p.items() if k != "margin"} for p in pairs]
    return {"pairs": (plain, write("pairs.json", plain)), "margins": (pairs, write("margins.json", pairs)), "labels": (labels, write("labels.json", labels))}


def read_rows(path, task):
    text = call("dump", dump, tokenizer, f"task={task}", f"path={path}", "format=trl", "template=default", f"max_length={LENGTH}")
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def documents(row):
    """The ids of both documents of a row, and which of them are of the answer: a token's target is the token behind it."""
    out = []
    for begin, end in zip(row["starts"], row["starts"][1:]):
        out.append((row["ids"][begin:end], [0] + [int(t >= 0) for t in row["targets"][begin:end - 1]]))
    return out


def pad(parts, fill=0):
    n = max(map(len, parts))
    return torch.tensor([p + [fill] * (n - len(p)) for p in parts])


def stack(docs):
    ids, masks = [d[0] for d in docs], [d[1] for d in docs]
    return pad(ids), pad([[1] * len(i) for i in ids]), pad(masks)


class Collator:
    """A batch of the rows that the examples name."""

    def __init__(self, rows, examples, kind):
        self.rows, self.examples, self.kind = [documents(r) for r in rows], examples, kind

    def __call__(self, batch):
        rows = [self.rows[b["row"]] for b in batch]
        if self.kind == "kto":
            batch_of = {"label": [self.examples[b["row"]]["label"] for b in batch]}
            for prefix, docs in (("", [r[0] for r in rows]), ("KL_", [r[1] for r in rows])):
                batch_of |= dict(zip((prefix + "input_ids", prefix + "attention_mask", prefix + "completion_mask"), stack(docs)))
            batch_of["label"] = torch.tensor(batch_of["label"])
            return batch_of
        if self.kind in ("orpo", "simpo"):
            batch_of = {}
            for prefix, docs in (("chosen_", [r[0] for r in rows]), ("rejected_", [r[1] for r in rows])):
                ids, attention, answer = stack(docs)
                batch_of |= {prefix + "input_ids": ids, prefix + "attention_mask": attention, prefix + "labels": torch.where(answer == 1, ids, -100)}
            return batch_of
        ids, attention, answer = stack([r[0] for r in rows] + [r[1] for r in rows])
        if self.kind == "reward":
            margins = [self.examples[b["row"]].get("margin") for b in batch]
            return {"input_ids": ids, "attention_mask": attention} | ({} if None in margins else {"margin": torch.tensor(margins)})
        return {"input_ids": ids, "attention_mask": attention, "completion_mask": answer}


# Name of the comparison: task, group preference of the run file, data, TRL's trainer and its own settings, measurements.
COMPARISONS = {
    "dpo": ("dpo", {}, "pairs", DPOTrainer, DPOConfig, {}, PAIRS),
    "dpo, ipo": ("dpo", {"loss": "ipo"}, "pairs", DPOTrainer, DPOConfig, {"loss_type": ["ipo"]}, PAIRS),
    "dpo, hinge": ("dpo", {"loss": "hinge"}, "pairs", DPOTrainer, DPOConfig, {"loss_type": ["hinge"]}, PAIRS),
    "orpo": ("orpo", {}, "pairs", ORPOTrainer, ORPOConfig, {}, PAIRS + ["nll_loss", "log_odds_ratio", "log_odds_chosen"]),
    "simpo": ("simpo", {"beta": 2.0, "gamma": 1.0, "label_smoothing": 0.1}, "pairs", CPOTrainer, CPOConfig,
              {"loss_type": "simpo", "cpo_alpha": 0.0, "beta": 2.0, "simpo_gamma": 1.0, "label_smoothing": 0.1}, PAIRS),
    "kto": ("kto", {"desirable_weight": 1.5, "undesirable_weight": 0.5}, "labels", KTOTrainer, KTOConfig,
            {"desirable_weight": 1.5, "undesirable_weight": 0.5}, PAIRS + ["kl"]),
    "reward": ("reward", {}, "pairs", RewardTrainer, RewardConfig, {}, REWARD),
    "reward, margins": ("reward", {"center_rewards_coefficient": 0.05}, "margins", RewardTrainer, RewardConfig, {"center_rewards_coefficient": 0.05}, REWARD),
}


def ours(name, task, preference, data):
    name = name.replace(", ", "-")
    config = {"task": task, "directory": tmp, "model": {"path": os.path.join(tmp, "scores" if task == "reward" else "causal"), "tokenizer": tokenizer},
              "data": {"path": [data], "format": "trl", "template": "default", "max_length": LENGTH, "cache_dir": os.path.join(tmp, "cache")},
              "train": {"learning_rate": RATE, "schedule": "constant", "micro_batch": BATCH, "max_steps": steps, "shuffle": False, "precision": "fp32"},
              "preference": preference, "output": {"dir": os.path.join(tmp, name), "log_steps": 1}}
    call(name, worker, env={"DTRAIN_CONFIG": write(name + ".json", config)})
    with open(os.path.join(tmp, name, "metrics.jsonl")) as f:
        return [line for line in map(json.loads, f) if "loss" in line]


def theirs(task, examples, rows, trainer_class, config_class, settings):
    """The logs of TRL's trainer. Its own reading of the data needs texts, which its collator then passes over."""
    load = tf.AutoModelForSequenceClassification if task == "reward" else tf.AutoModelForCausalLM
    model = load.from_pretrained(os.path.join(tmp, "scores" if task == "reward" else "causal"), dtype=torch.float32)
    texts = {"prompt": "a", "completion": "b", "label": True} if task == "kto" else {"prompt": "a", "chosen": "b", "rejected": "c"}
    data = datasets.Dataset.from_list([texts | ({"label": e["label"]} if task == "kto" else {}) | {"row": i} for i, e in enumerate(examples)])
    settings = {"output_dir": os.path.join(tmp, "trl"), "learning_rate": RATE, "lr_scheduler_type": "constant", "per_device_train_batch_size": BATCH,
                "max_steps": steps, "logging_steps": 1, "save_strategy": "no", "report_to": [], "remove_unused_columns": False, "use_cpu": True, "bf16": False,
                "gradient_checkpointing": False, "train_sampling_strategy": "sequential", "optim": "adamw_torch", "max_length": 1024,
                "disable_tqdm": True, **settings}
    args = config_class(**{k: v for k, v in settings.items() if k in inspect.signature(config_class).parameters})
    trainer = trainer_class(model=model, args=args, train_dataset=data, processing_class=tf.AutoTokenizer.from_pretrained(tokenizer),
                            data_collator=Collator(rows, examples, task))
    trainer.remove_callback(tf.PrinterCallback)
    trainer.train()
    return [line for line in trainer.state.log_history if "loss" in line]


torch.manual_seed(11)
sizes = dict(vocab_size=264, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0, initializer_range=0.1, tie_word_embeddings=False)
tf.LlamaForCausalLM(tf.LlamaConfig(**sizes)).save_pretrained(os.path.join(tmp, "causal"))
tf.LlamaForSequenceClassification(tf.LlamaConfig(**sizes, num_labels=1)).save_pretrained(os.path.join(tmp, "scores"))
data = make_data()
check(set(only) <= set(COMPARISONS), f"expected some of {list(COMPARISONS)}, got {only}")
for name in only or COMPARISONS:
    task, preference, kind, trainer_class, config_class, settings, metrics = COMPARISONS[name]
    examples, path = data[kind]
    rows = read_rows(path, "labels" if task == "kto" else "pairs")
    check(len(rows) == len(examples), f"{name}: {len(rows)} rows of {len(examples)} examples")
    a, b = ours(name, task, preference, path), theirs(task, examples, rows, trainer_class, config_class, settings)
    check(len(a) == len(b) == steps, f"{name}: {len(a)} and {len(b)} steps of {steps}")
    check(abs(b[0]["loss"] - b[-1]["loss"]) > 0.01, f"{name}: TRL learns nothing")
    off = {m: [abs(x[m] - y[m]) for x, y in zip(a, b)] for m in ["loss", *metrics]}
    print(f"{name}: {steps} steps, differences: " + ", ".join(f"{m} {max(d):.1e}" for m, d in off.items()), flush=True)
    for metric, differences in off.items():
        check(all(d < TOLERANCE for d in differences), f"{name}: {metric} differs from TRL's by {max(differences):.1e}")
        check(any(y[metric] for y in b), f"{name}: {metric} is always 0")
