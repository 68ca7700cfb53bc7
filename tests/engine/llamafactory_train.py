#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llamafactory_train.py WORKER SOURCE TMP [NAME …]: training beside LLaMA-Factory's own trainers (and by them transformers', PEFT's and TRL's), from the
same weights on the same files. Losses, norms of gradients and learning rates of all steps agree within 1e-4, relatively; where dtrain-run(5) names a
difference, losses do not. NAME: only these comparisons. Exits 77 (skipped) where LLaMA-Factory is not installed."""
import contextlib
import io
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import types

worker, source, tmp = sys.argv[1:4]
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": os.path.join(tmp, "hf"), "TQDM_DISABLE": "1", "WANDB_DISABLED": "true", "CUDA_VISIBLE_DEVICES": ""}
try:
    import torch
    import transformers as tf
    import peft
    try:
        import torchaudio  # noqa: F401  of use for sound alone
    except ImportError:
        sys.modules["torchaudio"] = types.ModuleType("torchaudio")
    from llamafactory.train.tuner import run_exp
except ImportError as e:
    print(f"skipped: LLaMA-Factory is not installed: {e}")
    sys.exit(77)

torch.set_num_threads(1)
TOLERANCE, RATE, STEPS = 1e-4, 1e-3, 6
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
MODEL = os.path.join(tmp, "model")


def check(ok, what):
    if not ok:
        sys.exit(f"FAILED: {what}")


def write(name, value):
    with open(os.path.join(tmp, name), "w") as f:
        json.dump(value, f)
    return os.path.join(tmp, name)


def make_model(path, seed):
    torch.manual_seed(seed)
    sizes = dict(vocab_size=264, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 max_position_embeddings=1024, bos_token_id=1, eos_token_id=2, pad_token_id=0, initializer_range=0.1, tie_word_embeddings=False)
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**sizes))
    model.save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(source, "tests/engine/bytes", name), path)
    return model


def make_adapter(name, **settings):
    """An adapter whose B is not zero."""
    model = peft.get_peft_model(make_model(MODEL, 11), peft.LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", target_modules=LINEAR, **settings))
    for key, p in model.named_parameters():
        if "lora_B" in key:
            torch.nn.init.normal_(p, std=0.05)
    model.save_pretrained(os.path.join(tmp, name))
    return os.path.join(tmp, name)


def make_data():
    r = random.Random(3)
    words = "the cat sat on a mat and saw how many dogs ran far away from it".split()

    def text(low, high):
        return " ".join(r.choice(words) for _ in range(r.randint(low, high)))

    pairs = [{"conversations": [{"from": "human", "value": text(3, 8)}],
              **{k: {"from": "gpt", "value": text(2, 14)} for k in ("chosen", "rejected")}} for _ in range(40)]
    write("pairs.json", pairs)
    write("labels.json", [{"conversations": p["conversations"] + [p["rejected" if i % 2 else "chosen"]], "kto_tag": i % 2 == 0} for i, p in enumerate(pairs)])
    write("sft.json", [{"instruction": text(3, 8), "input": "", "output": text(2, 14)} for _ in range(40)])
    write("dataset_info.json", {
        "pairs": {"file_name": "pairs.json", "ranking": True, "formatting": "sharegpt", "columns": {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"}},
        "labels": {"file_name": "labels.json", "formatting": "sharegpt", "columns": {"messages": "conversations", "kto_tag": "kto_tag"}},
        "sft": {"file_name": "sft.json"}})


def theirs(stage, data, settings):
    out = os.path.join(tmp, "theirs")
    shutil.rmtree(out, ignore_errors=True)
    settings = {"stage": stage, "do_train": True, "output_dir": out, "model_name_or_path": MODEL, "dataset": data, "dataset_dir": tmp, "template": "default",
                "cutoff_len": 512, "overwrite_cache": True, "preprocessing_num_workers": 1, "finetuning_type": "full", "use_cpu": True, "bf16": False,
                "per_device_train_batch_size": 2, "learning_rate": RATE, "lr_scheduler_type": "constant", "max_steps": STEPS, "disable_shuffling": True,
                "optim": "adamw_torch", "logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_gradient_checkpointing": True,
                "flash_attn": "sdpa", "infer_dtype": "float32", **settings}
    with contextlib.redirect_stdout(io.StringIO()):
        run_exp(settings)
    with open(os.path.join(out, "trainer_state.json")) as f:
        return [line for line in json.load(f)["log_history"] if "loss" in line]


def ours(name, task, data, groups):
    name = name.replace(", ", "-").replace(" ", "-")
    config = {"task": task, "directory": tmp, "model": {"path": MODEL}, **{k: v for k, v in groups.items() if k not in ("data", "train")},
              "data": {"dataset": [data], "dataset_dir": tmp, "template": "default", "max_length": 512, "cache_dir": os.path.join(tmp, "cache"),
                       **groups.get("data", {})},
              "train": {"micro_batch": 2, "learning_rate": RATE, "schedule": "constant", "max_steps": STEPS, "shuffle": False, "precision": "fp32", **groups.get("train", {})},
              "output": {"dir": os.path.join(tmp, name), "log_steps": 1}}
    r = subprocess.run([worker], env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "DTRAIN_CONFIG": write(name + ".json", config)}, capture_output=True, text=True)
    check(r.returncode == 0, f"{name}: ended with {r.returncode}: {r.stdout[-2000:]}{r.stderr[-2000:]}")
    with open(os.path.join(tmp, name, "metrics.jsonl")) as f:
        return [line for line in map(json.loads, f) if "loss" in line]


logging.disable(logging.WARNING)
tf.logging.set_verbosity_error()
tf.logging.disable_progress_bar()
make_data()
make_model(os.path.join(tmp, "other"), 12)
LORA, DORA = make_adapter("start-lora"), make_adapter("start-dora", use_dora=True)
SAVED = make_adapter("start-saved", modules_to_save=["embed_tokens", "lm_head"])
EPOCHS = {"num_train_epochs": 2.0, "max_steps": -1, "gradient_accumulation_steps": 3}, {"epochs": 2.0, "max_steps": 0, "accumulation": 3}


def adapter(path, **more):
    return {"finetuning_type": "lora", "lora_rank": 4, "lora_alpha": 8, "lora_target": "all", "adapter_name_or_path": path, "create_new_adapter": False, **more}


def lora(path, **more):
    return {"lora": {"rank": 4, "alpha": 8, "from": path, **more}}


# Name of the comparison: LLaMA-Factory's stage and settings, the data, the task here and groups of its run file; those that differ begin with "not ".
COMPARISONS = {
    "cosine": ("sft", {**EPOCHS[0], "lr_scheduler_type": "cosine", "warmup_ratio": 0.2, "weight_decay": 0.1, "max_grad_norm": 0.5}, "sft", "sft",
               {"train": {**EPOCHS[1], "schedule": "cosine", "warmup_ratio": 0.2, "weight_decay": 0.1, "clip": 0.5}}),
    "cosine with a floor": ("sft", {**EPOCHS[0], "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 2e-4}, "warmup_steps": 3, "weight_decay": 1.0},
                            "sft", "sft", {"train": {**EPOCHS[1], "schedule": "cosine", "min_learning_rate": 2e-4, "warmup_steps": 3, "weight_decay": 1.0}}),
    "linear": ("sft", {**EPOCHS[0], "lr_scheduler_type": "linear", "max_grad_norm": 0.0, "adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6}, "sft", "sft",
               {"train": {**EPOCHS[1], "schedule": "linear", "clip": 0, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6}}),
    "label smoothing": ("sft", {"label_smoothing_factor": 0.2}, "sft", "sft", {"train": {"label_smoothing": 0.2}}),
    "not label smoothing, accumulation": ("sft", {**EPOCHS[0], "label_smoothing_factor": 0.2}, "sft", "sft", {"train": {**EPOCHS[1], "label_smoothing": 0.2}}),
    "dft": ("sft", {**EPOCHS[0], "use_dft_loss": True}, "sft", "sft", {"train": {**EPOCHS[1], "loss": "dft"}}),
    "sgd": ("sft", {"optim": "sgd", "learning_rate": 0.01, "weight_decay": 0.1}, "sft", "sft",
            {"train": {"optimizer": "sgd", "momentum": 0, "learning_rate": 0.01, "weight_decay": 0.1}}),
    "not adafactor": ("sft", {"optim": "adafactor"}, "sft", "sft", {"train": {"optimizer": "adafactor"}}),
    "neat_packing": ("sft", {"packing": True, "neat_packing": True}, "sft", "sft", {"data": {"packing": True}}),
    "not packing": ("sft", {"packing": True}, "sft", "sft", {"data": {"packing": True, "cross_documents": True}}),
    "lora": ("sft", adapter(LORA, weight_decay=0.5, loraplus_lr_ratio=8.0), "sft", "sft", {**lora(LORA, plus_ratio=8.0), "train": {"weight_decay": 0.5}}),
    "lora, modules_to_save": ("sft", adapter(SAVED, weight_decay=0.5), "sft", "sft",
                              {**lora(SAVED, modules_to_save=["embed_tokens", "lm_head"]), "train": {"weight_decay": 0.5}}),
    "dora, decay_all": ("sft", adapter(DORA, weight_decay=20.0), "sft", "sft", {**lora(DORA, dora=True), "train": {"weight_decay": 20, "decay_all": True}}),
    "not dora with decay": ("sft", adapter(DORA, weight_decay=20.0), "sft", "sft", {**lora(DORA, dora=True), "train": {"weight_decay": 20}}),
    "freeze": ("sft", {"finetuning_type": "freeze", "freeze_trainable_layers": 1, "freeze_trainable_modules": "self_attn", "freeze_extra_modules": "lm_head"}, "sft", "sft",
               {"train": {"freeze_trainable_layers": 1, "freeze_trainable_modules": ["self_attn"], "freeze_extra_modules": ["lm_head"]}}),
    "not freeze norm": ("sft", {"finetuning_type": "freeze", "freeze_trainable_layers": 1, "freeze_extra_modules": "norm"}, "sft", "sft",
                        {"train": {"freeze_trainable_layers": 1, "freeze_extra_modules": ["norm"]}}),
    "dpo": ("dpo", {"pref_loss": "sigmoid"}, "pairs", "dpo", {}),
    "dpo, label_smoothing": ("dpo", {"dpo_label_smoothing": 0.2}, "pairs", "dpo", {"preference": {"label_smoothing": 0.2}}),
    "dpo, reference": ("dpo", {"ref_model": os.path.join(tmp, "other")}, "pairs", "dpo", {"preference": {"reference": os.path.join(tmp, "other")}}),
    "dpo, lora": ("dpo", adapter(LORA, ref_model=MODEL, ref_model_adapters=LORA), "pairs", "dpo", lora(LORA)),
    "not dpo, lora without its reference": ("dpo", adapter(LORA), "pairs", "dpo", lora(LORA)),
    "not ipo": ("dpo", {"pref_loss": "ipo"}, "pairs", "dpo", {"preference": {"loss": "ipo"}}),
    "not hinge": ("dpo", {"pref_loss": "hinge"}, "pairs", "dpo", {"preference": {"loss": "hinge"}}),
    "sigmoid for hinge": ("dpo", {"pref_loss": "hinge"}, "pairs", "dpo", {}),
    "not orpo": ("dpo", {"pref_loss": "orpo"}, "pairs", "orpo", {}),
    "simpo": ("dpo", {"pref_loss": "simpo", "pref_beta": 2.0, "simpo_gamma": 1.0}, "pairs", "simpo", {"preference": {"beta": 2.0, "gamma": 1.0}}),
    "kto": ("kto", {"kto_chosen_weight": 1.5, "kto_rejected_weight": 0.5}, "labels", "kto", {"preference": {"desirable_weight": 1.5, "undesirable_weight": 0.5}}),
}
only = sys.argv[4:]
check(set(only) <= set(COMPARISONS), f"expected some of {list(COMPARISONS)}, got {only}")
for name in only or COMPARISONS:
    stage, settings, data, task, groups = COMPARISONS[name]
    a, b = ours(name, task, data, groups), theirs(stage, data, settings)
    check(len(a) == len(b) > 1, f"{name}: {len(a)} and {len(b)} steps")
    off = {k: max(abs(x[k] - y[k]) / max(abs(y[k]), 1e-12) for x, y in zip(a, b) if x[k] or y[k]) for k in ("loss", "grad_norm", "learning_rate")}
    print(f"{name}: {len(a)} steps, relative differences: " + ", ".join(f"{k} {d:.1e}" for k, d in off.items()), flush=True)
    if name.startswith("not "):
        check(off["loss"] > TOLERANCE, f"{name}: agrees now: correct DIFFERENCES FROM OTHER PROGRAMS in dtrain-run(5)")
    else:
        check(max(off.values()) < TOLERANCE, f"{name}: differs from LLaMA-Factory")
