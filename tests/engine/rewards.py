# SPDX-License-Identifier: Apache-2.0
"""rewards.py WORKER DTRAIN DATASET_DUMP SOURCE TMP: reward models against transformers and PEFT. For each family a small model whose rewards are those
of transformers, trained from a causal model or one of sequence classification, saved, and loaded there and here; with an adapter, which PEFT loads
and dtrain export merges."""
import json
import os
import shutil
import subprocess
import sys

import torch
import transformers as tf
from peft import AutoPeftModelForSequenceClassification, LoraConfig, get_peft_model

tf.utils.logging.disable_progress_bar()
tf.utils.logging.set_verbosity_error()
worker, dtrain, dump, source, tmp = sys.argv[1:]
tokenizer = os.path.join(source, "tests/engine/bytes")
data = os.path.join(source, "etc/examples/preferences.json")
common = dict(vocab_size=264, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0, initializer_range=0.1)
families = {
    "llama": tf.LlamaConfig(**common, tie_word_embeddings=False),
    "mistral": tf.MistralConfig(**common, sliding_window=24, tie_word_embeddings=False),
    "qwen2": tf.Qwen2Config(**common, tie_word_embeddings=True),
    "qwen3": tf.Qwen3Config(**common, head_dim=32, tie_word_embeddings=True),
    "phi3": tf.Phi3Config(**common, tie_word_embeddings=False),
    "gemma3": tf.Gemma3TextConfig(**common, head_dim=16, query_pre_attn_scalar=16, sliding_window=24, final_logit_softcapping=None),
    "gemma2": tf.Gemma2Config(**common, head_dim=16, sliding_window=24, attn_implementation="eager"),
    "gpt2": tf.GPT2Config(vocab_size=264, n_embd=64, n_layer=2, n_head=4, n_positions=256, bos_token_id=1, eos_token_id=2, pad_token_id=0, initializer_range=0.1),
    "olmo3": tf.Olmo3Config(**common, sliding_window=24, tie_word_embeddings=False),
    "smollm3": tf.SmolLM3Config(**common, no_rope_layers=[1, 0], tie_word_embeddings=True),
    "olmo2": tf.Olmo2Config(**common, tie_word_embeddings=False),
}


def check(ok, what):
    if not ok:
        sys.exit(f"FAILED: {what}")


def call(what, *command, fails=False, env=None):
    r = subprocess.run(command, env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", **(env or {})}, capture_output=True, text=True)
    check((r.returncode != 0) == fails, f"{what}: ended with {r.returncode}: {r.stdout[-2000:]}{r.stderr[-2000:]}")
    return r.stdout + r.stderr


def train(name, model, fails=False, task="reward", **groups):
    config = {"task": task, "directory": tmp, "model": {"path": model, "tokenizer": tokenizer},
              "data": {"path": [data], "template": "default", "max_length": 96, "cache_dir": os.path.join(tmp, "cache")},
              "train": {"learning_rate": 1e-3, "schedule": "constant", "micro_batch": 1, "max_steps": 6, "shuffle": False, "precision": "fp32",
                        **groups.pop("train", {})},
              "output": {"dir": os.path.join(tmp, name), "log_steps": 1}, **groups}
    path = os.path.join(tmp, name + ".json")
    json.dump(config, open(path, "w"))
    return call(name, worker, fails=fails, env={"DTRAIN_CONFIG": path})


rows = [json.loads(line) for line in
        call("dump", dump, tokenizer, "task=pairs", f"path={data}", "template=default", "max_length=96").splitlines() if line.startswith("{")][:6]


def ours(name, model, **groups):
    """Rewards of chosen and rejected answers, by a run that changes nothing."""
    train(name, model, train={"learning_rate": 1e-30, "weight_decay": 0.0}, **groups)
    lines = [json.loads(line) for line in open(os.path.join(tmp, name, "metrics.jsonl"))]
    lines = [line for line in lines if "margin" in line]
    return torch.tensor([[line["mean_reward"] + s * line["margin"] / 2 for s in (1, -1)] for line in lines])


def theirs(model):
    """With padding behind the shorter answer."""
    out = []
    for row in rows:
        a, b, c = row["starts"]
        answers = [row["ids"][a:b], row["ids"][b:c]]
        n = max(map(len, answers))
        ids = torch.tensor([x + [0] * (n - len(x)) for x in answers])
        with torch.no_grad():
            out.append(model.eval()(ids, attention_mask=(ids != 0).long()).logits[:, 0])
    return torch.stack(out)


def load(directory):
    model, info = tf.AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    check(not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], f"{directory}: {info}")
    return model


def compare(a, b, what):
    error = float((a - b).abs().max() / b.abs().max())
    check(a.shape == b.shape and error < 1e-4, f"{what}: rewards differ by {error:.2e}")
    return error


for name, config in families.items():
    torch.manual_seed(7)
    at = os.path.join(tmp, name)
    causal = tf.AutoModelForCausalLM.from_config(config)
    causal.save_pretrained(at + "-causal")
    config.num_labels = 1
    tf.AutoModelForSequenceClassification.from_config(config).save_pretrained(at + "-theirs")
    errors = [compare(ours(f"{name}-a", at + "-theirs"), theirs(load(at + "-theirs")), f"{name}: theirs")]
    # A new head, trained and saved; the body begins as the causal one.
    text = train(f"{name}-b", at + "-causal")
    check("score head: new" in text, f"{name}: no word of the new head")
    saved = load(os.path.join(tmp, f"{name}-b"))
    check(saved.config.num_labels == 1 and saved.config.pad_token_id == 0, f"{name}: {saved.config}")
    errors.append(compare(ours(f"{name}-c", os.path.join(tmp, f"{name}-b")), theirs(saved), f"{name}: ours"))
    print(f"{name}: rewards within {max(errors):.1e} of transformers'")

# The new head has the deviation of initializer_range, and depends on the seed alone.
for name, seed in (("s1", 1), ("s2", 1), ("s3", 2)):
    train(name, os.path.join(tmp, "llama-causal"), train={"learning_rate": 1e-30, "weight_decay": 0.0, "seed": seed, "max_steps": 1})
heads = [load(os.path.join(tmp, n)).score.weight for n in ("s1", "s2", "s3")]
check(torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2]), "the head does not follow from the seed")
check(0.07 < heads[0].std().item() < 0.13, f"the head's deviation is {heads[0].std().item()}")

# LoRA: PEFT loads it, and the merged directory gives the same rewards, there and here.
base, adapter, merged = (os.path.join(tmp, n) for n in ("qwen3-causal", "lora", "merged"))
text = train("lora", base, lora={"rank": 4, "target": ["all"]}, train={"learning_rate": 1e-2, "max_steps": 20})
check("score head: new" in text and "pad_token_id" not in text, text)
said = json.load(open(os.path.join(adapter, "adapter_config.json")))
check(said["task_type"] == "SEQ_CLS" and said["modules_to_save"] == ["score"], said)
peft = AutoPeftModelForSequenceClassification.from_pretrained(adapter, num_labels=1, dtype=torch.float32)
peft.config.pad_token_id = 0
want = theirs(peft)
call("export", dtrain, "export", base, merged, "--adapter", adapter)
compare(theirs(load(merged)), want, "the merged model, in transformers")
compare(ours("merged-ours", merged), want, "the merged model, here")
compare(ours("from", base, lora={"rank": 4, "target": ["all"], "from": adapter}), want, "the adapter, here")
# A base that names no padding is warned of; the head comes with the adapter that a run goes on from.
unpadded = os.path.join(tmp, "unpadded")
shutil.copytree(base, unpadded)
keys = json.load(open(os.path.join(base, "config.json")))
del keys["pad_token_id"]
json.dump(keys, open(os.path.join(unpadded, "config.json"), "w"))
text = train("unpadded-from", unpadded, lora={"rank": 4, "target": ["all"], "from": adapter}, train={"max_steps": 1})
check("warning: " + unpadded in text and "has no pad_token_id, and an adapter saves none: set model.config.pad_token_id = " in text, text)
check("score head: new" not in text, text)
# PEFT's own adapter, whose config names the modules of every classifier.
model = get_peft_model(tf.AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=torch.float32),
                       LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False))
model.save_pretrained(os.path.join(tmp, "peft"))
call("export", dtrain, "export", base, os.path.join(tmp, "merged-peft"), "--adapter", os.path.join(tmp, "peft"))
compare(theirs(load(os.path.join(tmp, "merged-peft"))), theirs(model), "PEFT's adapter, merged")

# What cannot work.
reward = os.path.join(tmp, "llama-b")
for task in ("dpo", "sft"):
    check("is a reward model" in train("wrong", reward, fails=True, task=task), f"{task} of a reward model")
two = tf.LlamaConfig(**common, num_labels=3)
tf.LlamaForSequenceClassification(two).save_pretrained(os.path.join(tmp, "three"))
check("3 labels" in train("wrong", os.path.join(tmp, "three"), fails=True), "three labels")
tf.GraniteForCausalLM(tf.GraniteConfig(**common)).save_pretrained(os.path.join(tmp, "granite"))
check("no sequence classification" in train("wrong", os.path.join(tmp, "granite"), fails=True), "granite")
for what, keys in ((reward, {}), (base, {"adapter": adapter})):
    path = os.path.join(tmp, "generate.json")
    json.dump({"task": "generate", "directory": tmp, "model": {"path": what, "tokenizer": tokenizer}, "generate": {"prompt": "a", **keys}},
              open(path, "w"))
    check("of a reward model" in (text := call("generate", worker, fails=True, env={"DTRAIN_CONFIG": path})) or "is a reward model" in text, text)
print("rewards: saved, loaded, merged and refused")
