# SPDX-License-Identifier: Apache-2.0
"""save_load.py WORKER LOGITS SOURCE TMP: for each family a small random model, saved by transformers, trained a few steps by the
worker, loaded again by transformers: tokenizer, config, trainer state and the logits have to agree."""
import glob
import json
import math
import os
import subprocess
import sys

import numpy as np
import torch
import transformers as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

tf.utils.logging.disable_progress_bar()
worker, logits_program, source, tmp = sys.argv[1:]
IDS = [1, 75, 104, 111, 35, 80, 108, 102, 104, 113, 118, 104, 263, 40, 7]
common = dict(vocab_size=264, hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0)
llama3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64, rope_theta=10000.0)
families = {
    "llama": tf.LlamaConfig(**common, rope_parameters=llama3, tie_word_embeddings=False),
    "llama-bias": tf.LlamaConfig(**common, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "mistral": tf.MistralConfig(**common, sliding_window=8, tie_word_embeddings=False),
    "qwen2": tf.Qwen2Config(**common, tie_word_embeddings=True),
    "qwen3": tf.Qwen3Config(**common, head_dim=32, tie_word_embeddings=False),
    "smollm3": tf.SmolLM3Config(**common, no_rope_layers=[1, 0, 1], tie_word_embeddings=True),
    "granite": tf.GraniteConfig(**common, embedding_multiplier=3.0, residual_multiplier=0.5, logits_scaling=2.0, tie_word_embeddings=False),
    "olmo2": tf.Olmo2Config(**common, tie_word_embeddings=False),
    "olmo3": tf.Olmo3Config(**common, sliding_window=8, tie_word_embeddings=False),
    "phi3": tf.Phi3Config(**common, sliding_window=8, tie_word_embeddings=False),
    "gemma2": tf.Gemma2Config(**common, head_dim=24, sliding_window=8, tie_word_embeddings=True),
    "gemma3": tf.Gemma3TextConfig(**common, head_dim=24, sliding_window=8, tie_word_embeddings=True),
    "qwen3_moe": tf.Qwen3MoeConfig(**common, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, tie_word_embeddings=True),
    "mixtral": tf.MixtralConfig(**common, num_local_experts=3, tie_word_embeddings=False, output_router_logits=True),
    "olmoe": tf.OlmoeConfig(**common, num_experts=5, num_experts_per_tok=2, tie_word_embeddings=False),
    "qwen3_5_text": tf.Qwen3_5TextConfig(**common, head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=24,
                                         layer_types=["linear_attention", "full_attention", "linear_attention"], tie_word_embeddings=True),
    "gemma": tf.GemmaConfig(**common, head_dim=24, tie_word_embeddings=True),
    "glm4": tf.Glm4Config(**common, head_dim=24, tie_word_embeddings=False),
    "ernie4_5": tf.Ernie4_5Config(**common, head_dim=24, use_bias=True, tie_word_embeddings=True),
    "seed_oss": tf.SeedOssConfig(**common, head_dim=24, tie_word_embeddings=False),
    "exaone4": tf.Exaone4Config(**common, sliding_window=8, tie_word_embeddings=False),
    "starcoder2": tf.Starcoder2Config(**common, tie_word_embeddings=True),
    "stablelm": tf.StableLmConfig(**common, tie_word_embeddings=False),
    "gpt2": tf.GPT2Config(vocab_size=264, n_embd=64, n_layer=3, n_head=4, n_positions=256, bos_token_id=1, eos_token_id=2, pad_token_id=0),
}


def check(ok, what):
    if not ok:
        sys.exit(f"FAILED: {what}")


def run_worker(name, config):
    path = os.path.join(tmp, name + ".json")
    json.dump(config, open(path, "w"))
    r = subprocess.run([worker], env={"DTRAIN_CONFIG": path, "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}, capture_output=True, text=True)
    check(r.returncode == 0, f"{name}: the worker ended with {r.returncode}: {r.stdout}{r.stderr}")


def ours(directory):
    r = subprocess.run([logits_program, directory, *map(str, IDS)], capture_output=True)
    check(r.returncode == 0, r.stderr.decode())
    return np.frombuffer(r.stdout, np.float32).reshape(len(IDS), -1)


def theirs(directory):
    model, info = tf.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    check(not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], f"{directory}: {info}")
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].numpy()


def compare(directory, what):
    a, b = ours(directory), theirs(directory)
    error = float(np.abs(a - b).max() / np.abs(b).max())
    check(error < 1e-5, f"{what}: logits differ by {error:.2e}")
    return error


for name, config in families.items():
    torch.manual_seed(0)
    model = tf.AutoModelForCausalLM.from_config(config)
    for n, p in model.named_parameters():  # biases and norms that are not all zeros and ones
        if p.dim() == 1:
            p.data += 0.1 * torch.randn_like(p)
    start = os.path.join(tmp, name)
    # Several files with an index, as large models are saved.
    model.save_pretrained(start, max_shard_size="100KB" if name == "qwen2" else "50GB")
    if name == "qwen2":
        check(os.path.exists(start + "/model.safetensors.index.json"), "transformers was to save shards")
    tf.AutoTokenizer.from_pretrained(os.path.join(source, "tests/engine/bytes")).save_pretrained(start)
    before = compare(start, name)
    for precision in ("fp32", "bf16"):
        out = f"{start}-{precision}"
        run_worker(f"{name}-{precision}", {
            "task": "pretrain", "directory": tmp, "model": {"path": start}, "environment": ["HF_TOKEN=secret"],
            "data": {"path": [source + "/LICENSE"], "format": "text", "max_length": 64, "packing": True, "eval_fraction": 0.1},
            "train": {"max_steps": 4, "learning_rate": 1e-3, "micro_batch": 2, "precision": precision},
            "output": {"dir": out, "save_steps": 2, "log_steps": 1, "max_shard_mb": 1},
        })
        for d in (out, out + "/checkpoint-2"):
            after = compare(d, f"{name} {precision} {d}")
            saved = json.load(open(d + "/config.json"))
            original = json.load(open(start + "/config.json"))
            want = {"fp32": "float32", "bf16": "bfloat16"}[precision]
            check(saved.get("dtype", saved.get("torch_dtype")) == want, f"{d}: dtype {saved}")
            check(saved["architectures"] == original["architectures"], f"{d}: architectures")
            check({k: v for k, v in saved.items() if "dtype" not in k} == {k: v for k, v in original.items() if "dtype" not in k}, f"{d}: config")
            check(tf.AutoModelForCausalLM.from_pretrained(d, dtype="auto").dtype == getattr(torch, want), f"{d}: dtype")
            tok = tf.AutoTokenizer.from_pretrained(d)
            check(tok("Licence").input_ids == tf.AutoTokenizer.from_pretrained(start)("Licence").input_ids, f"{d}: tokenizer")
            tf.GenerationConfig.from_pretrained(d)
        state = tf.TrainerState.load_from_json(out + "/trainer_state.json")
        check(state.global_step == 4 and state.max_steps == 4 and len(state.log_history) == 4, f"{out}: {state}")
        state.save_to_json(tmp + "/again.json")
        check(json.load(open(tmp + "/again.json")) == json.load(open(out + "/trainer_state.json")), f"{out}: trainer_state.json is not transformers'")
        lines = [json.loads(line) for line in open(out + "/metrics.jsonl")]
        metrics, marks = [m for m in lines if "event" not in m], [m for m in lines if "event" in m]
        events = EventAccumulator(out + "/runs")
        events.Reload()
        check([(m["event"], m["step"]) for m in marks] == [("start", 0), ("checkpoint", 2), ("checkpoint", 4), ("model", 4)], f"{out}: {marks}")
        check(marks[0]["precision"] == precision and marks[0]["ranks"] == 1 and marks[0]["attempt"] == 1, f"{out}: {marks[0]}")
        check(marks[1]["path"] == out + "/checkpoint-2", f"{out}: {marks[1]}")
        for m in metrics:
            parts = [m[k] for k in ("compute_seconds", "communication_seconds", "data_seconds")]
            check(min(parts) >= 0 and abs(sum(parts) - m["step_seconds"]) < 1e-5, f"{out}: the parts of a step: {m}")
            check(m["memory_bytes"] > m["device_memory_bytes"] > 0 and "slowest_rank" not in m, f"{out}: {m}")
            check(("eval_loss" in m) == ("eval_perplexity" in m), f"{out}: {m}")
        last = metrics[-1]
        check(abs(math.exp(last["eval_loss"]) - last["eval_perplexity"]) < 1e-5 * last["eval_perplexity"], f"{out}: {last}")
        points = events.Scalars("train/loss")
        check([p.step for p in points] == [1, 2, 3, 4], f"{out}: TensorBoard has {points}")
        check(all(abs(p.value - m["loss"]) < 1e-6 for p, m in zip(points, metrics)), f"{out}: TensorBoard and metrics.jsonl differ")
        for tag in ("train/learning_rate", "train/grad_norm", "eval/loss", "perf/tokens_per_second"):
            check(events.Scalars(tag), f"{out}: no {tag}")
        for tag, key in (("train/tokens", "tokens"), ("perf/step_seconds", "step_seconds"), ("perf/compute_seconds", "compute_seconds"),
                         ("perf/communication_seconds", "communication_seconds"), ("perf/data_seconds", "data_seconds"),
                         ("perf/memory_bytes", "memory_bytes"), ("perf/device_memory_bytes", "device_memory_bytes"),
                         ("eval/perplexity", "eval_perplexity")):
            want = [m[key] for m in metrics if key in m]
            seen = [p.value for p in events.Scalars(tag)]
            check(len(want) == len(seen) > 0 and all(abs(a - b) <= 1e-5 * abs(a) + 1e-6 for a, b in zip(want, seen)), f"{out}: {tag}: {seen}, {key}: {want}")
        texts = {tag: [(e.step, e.tensor_proto.string_val[0].decode()) for e in events.Tensors(tag)] for tag in events.Tags()["tensors"]}
        check(set(texts) == {"configuration", "events"}, f"{out}: TensorBoard has the texts {list(texts)}")
        check(all(events.SummaryMetadata(tag).plugin_data.plugin_name == "text" for tag in texts), f"{out}: not texts for TensorBoard")
        check(json.loads(texts["configuration"][0][1])["train"]["learning_rate"] == 1e-3, f"{out}: {texts['configuration']}")
        check("secret" not in texts["configuration"][0][1], f"{out}: the environment is shown")
        check([s for s, _ in texts["events"]] == [0, 2, 4, 4] and "checkpoint-2" in texts["events"][1][1], f"{out}: {texts['events']}")
        print(f"{name} {precision}: logits agree to {before:.1e} as loaded, {after:.1e} as saved")
