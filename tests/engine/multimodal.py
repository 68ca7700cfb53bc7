# SPDX-License-Identifier: Apache-2.0
"""multimodal.py WORKER LOGITS DTRAIN SOURCE TMP: the language models of small random multimodal models are trained, whole and with
adapters. What is saved is loaded by transformers and PEFT: its language model computes what ours does, its other parts are unchanged,
and losses and weights are those of the same language model by itself."""
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import torch
import transformers as tf
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file

tf.utils.logging.disable_progress_bar()
tf.logging.set_verbosity_error()
worker, logits_program, dtrain, source, tmp = sys.argv[1:]
IDS = [1, 75, 104, 111, 35, 80, 108, 102, 104, 113, 118, 104, 263, 40, 7]
TEXT = dict(vocab_size=264, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=256, head_dim=16, bos_token_id=1, eos_token_id=2, pad_token_id=0)
WIDE = dict(TEXT, hidden_size=256, intermediate_size=512, num_attention_heads=8)  # more than one file
QWEN2 = {k: v for k, v in TEXT.items() if k != "head_dim"}


def rope(**k):  # a new one each time: transformers writes into it
    return {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4, **k}}


LINEAR = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=24,
              layer_types=["linear_attention", "full_attention"])
VIT = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)
QWEN_VIT = dict(depth=1, hidden_size=32, intermediate_size=48, num_heads=2, out_hidden_size=64, patch_size=14)
# The configuration; that of the same language model by itself; whether its head is the embedding; what the files call its blocks.
MODELS = {
    "gemma3": (tf.Gemma3Config(text_config=dict(TEXT, sliding_window=8), vision_config=dict(VIT, model_type="siglip_vision_model"), mm_tokens_per_image=4),
               tf.Gemma3TextConfig(**TEXT, sliding_window=8), True, "language_model.model."),
    "mistral3": (tf.Mistral3Config(text_config=dict(TEXT, model_type="mistral"), vision_config=dict(VIT, model_type="pixtral", head_dim=16),
                                   tie_word_embeddings=False),
                 tf.MistralConfig(**TEXT), False, "language_model.model."),
    "llava": (tf.LlavaConfig(text_config=dict(WIDE, model_type="llama"), vision_config=dict(VIT, hidden_size=128, intermediate_size=1024, num_hidden_layers=3, model_type="clip_vision_model"), tie_word_embeddings=False),
              tf.LlamaConfig(**WIDE), False, "language_model.model."),
    "internvl": (tf.InternVLConfig(text_config=dict(QWEN2, model_type="qwen2"), vision_config=dict(VIT, image_size=[28, 28], patch_size=[14, 14]),
                                   tie_word_embeddings=False),
                 tf.Qwen2Config(**QWEN2), False, "language_model.model."),
    "qwen2_vl": (tf.Qwen2VLConfig(text_config=dict(QWEN2, **rope()), vision_config=dict(depth=1, embed_dim=32, hidden_size=64, num_heads=2, patch_size=14),
                                  tie_word_embeddings=False),
                 tf.Qwen2Config(**QWEN2, rms_norm_eps=1e-5), False, "model."),
    "qwen2_5_vl": (tf.Qwen2_5_VLConfig(text_config=dict(QWEN2, **rope()), vision_config=QWEN_VIT, tie_word_embeddings=True),
                   tf.Qwen2Config(**QWEN2, rms_norm_eps=1e-5, tie_word_embeddings=True), True, "model."),
    "qwen3_5": (tf.Qwen3_5Config(text_config=dict(TEXT, **LINEAR, **rope(partial_rotary_factor=0.5)), vision_config=QWEN_VIT, tie_word_embeddings=True),
                tf.Qwen3_5TextConfig(**TEXT, **LINEAR, partial_rotary_factor=0.5, tie_word_embeddings=True), True, "model.language_model."),
    "qwen3_vl": (tf.Qwen3VLConfig(text_config=dict(TEXT, **rope()), vision_config=dict(QWEN_VIT, deepstack_visual_indexes=[0]), tie_word_embeddings=False),
                 tf.Qwen3Config(**TEXT), False, "model.language_model."),
}


def check(ok, what):
    if not ok:
        sys.exit(f"FAILED: {what}")


# Whether a process can have a mount of its own.
SEPARATE = subprocess.run(["unshare", "-m", "true"], stderr=subprocess.DEVNULL).returncode == 0


def run(name, path, out, ranks=1, fails=False, apart=False, **more):
    config = {"task": "pretrain", "directory": tmp, "model": {"path": path},
              "data": {"path": [source + "/LICENSE"], "format": "text", "max_length": 64, "packing": True, "cache_dir": tmp + "/cache"},
              "train": {"max_steps": 4, "learning_rate": 1e-3, "schedule": "constant", "micro_batch": 2 // ranks, "precision": "fp32"},
              "output": {"dir": out, "save_steps": 2, "log_steps": 1, "max_shard_mb": 1}}
    for key, values in more.items():
        config[key] = dict(config.get(key, {}), **values) if isinstance(values, dict) else values
    config = {key: {k: v for k, v in values.items() if v not in (None, "")} if isinstance(values, dict) else values for key, values in config.items() if values}
    file, started = f"{tmp}/{name}.json", []
    json.dump(config, open(file, "w"))
    os.makedirs(f"{tmp}/meet-{name}")
    for rank in range(ranks):
        env = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "DTRAIN_ATTEMPT": "1", "DTRAIN_CONFIG": file, "RANK": str(rank), "WORLD_SIZE": str(ranks),
               "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks), "DTRAIN_RENDEZVOUS_DIR": f"{tmp}/meet-{name}"}
        if rank == 1 and apart:  # in the place of the output directory it finds another one
            os.makedirs(out, exist_ok=True)
            os.makedirs(out + "-other", exist_ok=True)
        command = ["unshare", "-m", "sh", "-c", f"mount --bind {out}-other {out} && exec {worker}"] if rank == 1 and apart else [worker]
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    text = "".join(p.communicate()[0] for p in started)
    check(fails == any(p.returncode for p in started), f"{name}: {text}")
    return text if fails or not out else [m["loss"] for m in map(json.loads, open(out + "/metrics.jsonl")) if "loss" in m]


def ours(directory):
    r = subprocess.run([logits_program, directory, *map(str, IDS)], capture_output=True)
    check(r.returncode == 0, r.stderr.decode())
    return np.frombuffer(r.stdout, np.float32).reshape(len(IDS), -1)


def load(directory):
    model, info = tf.AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    check(not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], f"{directory}: {info}")
    return model


def theirs(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor([IDS])).logits[0].numpy()


def same(a, b, what, limit=1e-5):
    error = float(np.abs(a - b).max() / np.abs(b).max())
    check(error < limit, f"{what}: logits differ by {error:.2e}")
    return error


def tensors(directory):
    """The tensors of a directory, by the index where it has one."""
    index = directory + "/model.safetensors.index.json"
    files = sorted(set(json.load(open(index))["weight_map"].values())) if os.path.exists(index) else ["model.safetensors"]
    return {key: value for f in files for key, value in load_file(f"{directory}/{f}").items()}


def others_unchanged(directory, start, prefix):
    before, after = tensors(start), tensors(directory)
    other = [key for key in before if not key.startswith((prefix + "layers.", prefix + "embed_tokens", prefix + "norm")) and "lm_head" not in key]
    check(other and set(before) == set(after), f"{directory} has other tensors: {set(before) ^ set(after)}")
    check(all(torch.equal(before[key], after[key]) and before[key].dtype == after[key].dtype for key in other), f"{directory}: other parts have changed")
    check(not torch.equal(before[prefix + "norm.weight"], after[prefix + "norm.weight"]), f"{directory}: nothing was trained")
    check(os.path.exists(directory + "/preprocessor_config.json"), f"{directory} has no preprocessor_config.json")


def differences(a, b):
    return max(abs(x - y) / y for x, y in zip(a, b))


for name, (config, text, tied, prefix) in MODELS.items():
    torch.manual_seed(0)
    start, alone, out = f"{tmp}/{name}", f"{tmp}/{name}-alone", f"{tmp}/{name}-out"
    model = tf.AutoModelForImageTextToText.from_config(config)
    for p in model.parameters():
        if p.dim() == 1:
            p.data += 0.1 * torch.randn_like(p)
    model.save_pretrained(start)
    with open(start + "/preprocessor_config.json", "w") as f:
        f.write("{}")
    byte_tokenizer = tf.AutoTokenizer.from_pretrained(os.path.join(source, "tests/engine/bytes"))
    byte_tokenizer.save_pretrained(start)
    before = same(ours(start), theirs(load(start)), name)

    # The same weights as a model of text.
    language = tf.AutoModelForCausalLM.from_config(text)
    check(language.config.tie_word_embeddings == tied, f"{name}: tied")
    state = {key.replace("model.language_model.", "model."): value for key, value in model.state_dict().items()}
    language.load_state_dict({key: state[key] for key in language.state_dict()})
    language.save_pretrained(alone)
    byte_tokenizer.save_pretrained(alone)
    losses = run(name + "-alone", alone, alone + "-out")
    check(run(name, start, out) == losses, f"{name}: not the losses of the language model by itself")
    for d in (out, out + "/checkpoint-2"):
        after = same(ours(d), theirs(load(d)), d)
        saved, original = (json.load(open(x + "/config.json")) for x in (d, start))
        check(saved == original, f"{d}: config.json: {saved}")
        others_unchanged(d, start, prefix)
    check(np.array_equal(ours(out), ours(alone + "-out")), f"{name}: other weights than the language model by itself")

    # Stopped after the second step, and resumed.
    again = out + "-again"
    run(name + "-half", start, again, train={"max_steps": 2})
    check(run(name + "-resumed", start, again)[2:] == losses[2:], f"{name}: resumed")
    check(np.array_equal(ours(out), ours(again)), f"{name}: other weights after it was resumed")

    if name == "llava":
        for part in ("language", "others"):
            check(len([f for f in os.listdir(out) if f.startswith(f"model-{part}-0000")]) > 1, f"{name}: shards of {part}: {os.listdir(out)}")
    for kind in {"gemma3": ("shared", "gathered", "local"), "qwen2_5_vl": ("shared",)}.get(name, ()):
        # A part of the model on each of two ranks, which share the directory; or of which rank 0 alone finds it, or each one of its own.
        two = f"{out}-{kind}"
        if kind != "shared" and not SEPARATE:
            print(f"no file system of its own: {kind} directories are skipped")
            continue
        found = run(f"{name}-{kind}", start, two, ranks=2, apart=kind != "shared", parallel={"strategy": "zero3"}, output={"gather": kind == "gathered"})
        check(differences(found, losses) < 1e-5, f"{name}: two ranks, {kind}")
        others_unchanged(two, start, prefix)
        same(ours(two), theirs(load(two)), two)

    # Adapters.
    lora = {"rank": 4, "alpha": 12, "target": ["q_proj", "v_proj", "down_proj"]}
    adapted = run(name + "-lora", start, out + "-lora", lora=lora)
    check(adapted == run(name + "-lora-alone", alone, alone + "-lora", lora=lora), f"{name}: losses with adapters")
    peft = PeftModel.from_pretrained(load(start), out + "-lora")
    with safe_open(out + "-lora/adapter_model.safetensors", "pt") as f:
        check(set(f.keys()) == {key.replace(".default", "") for key in peft.state_dict() if "lora_" in key}, f"{name}: {sorted(f.keys())[:3]}")
    subprocess.run([dtrain, "export", "--adapter", out + "-lora", start, out + "-merged"], check=True, stdout=subprocess.DEVNULL)
    merged = ours(out + "-merged")
    with_adapter = same(merged, theirs(peft), f"{name}: the merged adapter and PEFT's")
    same(merged, theirs(load(out + "-merged")), f"{name}: merged")
    check(np.abs(merged - ours(start)).max() > 1e-3, f"{name}: the adapter changes nothing")
    check(run(name + "-from", start, out + "-from", lora=dict(lora, **{"from": out + "-lora"}))[0] < adapted[0], f"{name}: lora.from")
    print(f"{name}: logits agree to {before:.1e} as loaded, {after:.1e} as saved, {with_adapter:.1e} with an adapter")

# What earlier versions of transformers called the parts, and the files that name the head twice.
start, old = f"{tmp}/gemma3", f"{tmp}/old"
shutil.copytree(start, old)
named = {("model." + key).replace("model.language_model.model.", "model.language_model."): value for key, value in load_file(old + "/model.safetensors").items()}
save_file({**named, "lm_head.weight": named["model.language_model.embed_tokens.weight"].clone()}, old + "/model.safetensors", {"format": "pt"})
check(np.array_equal(ours(old), ours(start)), "names of earlier versions")
run("old", old, old + "-out")
same(ours(old + "-out"), theirs(load(old + "-out")), "trained from files with names of earlier versions")

older = f"{tmp}/gemma3-older-lora"
shutil.copytree(f"{tmp}/gemma3-out-lora", older)
named = {key.replace("model.model.language_model.", "model.language_model.model."): value for key, value in load_file(older + "/adapter_model.safetensors").items()}
save_file(named, older + "/adapter_model.safetensors", {"format": "pt"})
description = dict(json.load(open(older + "/adapter_config.json")), target_modules=r"^(?!.*(?:vision_tower|multi_modal_projector)).*(?:q_proj|v_proj|down_proj).*")  # LLaMA-Factory's form
json.dump(description, open(older + "/adapter_config.json", "w"))
subprocess.run([dtrain, "export", "--adapter", older, start, older + "-merged"], check=True, stdout=subprocess.DEVNULL)
check(np.array_equal(ours(older + "-merged"), ours(f"{tmp}/gemma3-out-merged")), "an adapter with names of earlier versions")

# An adapter that PEFT has trained with modules of the vision tower, too: the text does not depend on these.
both = f"{tmp}/gemma3-both"
config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
get_peft_model(load(start), config).save_pretrained(both)
run("generate", start, "", task="generate", data=None, train={"precision": "fp32", "max_steps": None, "learning_rate": None, "schedule": None, "micro_batch": None},
    output=None, generate={"adapter": both, "prompt": "The License", "max_new_tokens": 3})
text = run("lora-both", start, tmp + "/none", fails=True, lora={"rank": 2, "alpha": 8, "target": ["q_proj", "v_proj"], "from": both})
check("has modules of other parts of the multimodal model, such as" in text, f"lora.from with modules of the vision tower: {text}")

for key, more, words in (("reward", {"task": "reward", "data": {"packing": False, "format": "alpaca"}}, "is a multimodal model, of which no reward model is made"),
                         ("init", {"model": {"path": "", "init": start + "/config.json", "tokenizer": start}},
                          "is that of a multimodal model, which is trained from files")):
    text = run(key, start, tmp + "/none", fails=True, **more)
    check(words in text, f"{key}: {text}")
