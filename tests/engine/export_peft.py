# SPDX-License-Identifier: Apache-2.0
# Compares "dtrain export" with merge_and_unload of PEFT: live where peft is installed, else with what it computed
# (export_peft.json, which "export_peft.py --record" writes). Arguments: the program dtrain, a directory to work in.
import json, math, os, shutil, signal, subprocess, sys, time, zlib

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, LlamaConfig, logging

logging.set_verbosity_error()
logging.disable_progress_bar()

here = os.path.dirname(os.path.abspath(__file__))
recorded = os.path.join(here, "export_peft.json")

llama = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
bases = {
    "llama": LlamaConfig(**llama, tie_word_embeddings=False),
    "tied": LlamaConfig(**llama, tie_word_embeddings=True),
    "gpt2": GPT2Config(vocab_size=40, n_positions=32, n_embd=16, n_layer=2, n_head=2),
}
# Name of the case, base, options of LoraConfig.
cases = [
    ("lora", "llama", dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"])),
    ("rslora", "llama", dict(r=4, lora_alpha=8, use_rslora=True, target_modules="all-linear",
                             rank_pattern={"layers.1.mlp.up_proj": 2}, alpha_pattern={"o_proj": 3})),
    ("regex", "llama", dict(r=3, lora_alpha=5, target_modules=r".*layers\.1\.(self_attn|mlp)\.(q|up)_proj",
                            modules_to_save=["lm_head"])),
    ("dora", "llama", dict(r=2, lora_alpha=4, use_dora=True, target_modules=["k_proj", "gate_proj", "o_proj"])),
    ("embedding", "llama", dict(r=2, lora_alpha=4, target_modules=["embed_tokens", "q_proj"])),
    ("gpt2", "gpt2", dict(r=2, lora_alpha=4, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)),
    ("gpt2_dora", "gpt2", dict(r=2, lora_alpha=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, use_dora=True)),
]


def values(name, shape, scale=0.1):
    """The same numbers on every machine and with every version of PyTorch."""
    n = math.prod(shape)
    start = zlib.crc32(name.encode()) % 10007
    return torch.tensor([scale * math.sin(1.7 * (start + i)) for i in range(n)], dtype=torch.float64).to(torch.float32).reshape(shape)


def fill(model, wanted=lambda name: True):
    with torch.no_grad():
        for name, p in model.named_parameters():
            if wanted(name):
                p.copy_(values(name, p.shape, 1.0 if "magnitude" in name else 0.1) + (2.0 if "magnitude" in name else 0.0))


def make_base(name, directory):
    model = AutoModelForCausalLM.from_config(bases[name], dtype=torch.float32)
    fill(model)
    model.save_pretrained(directory)


def peft_case(base, options, directory):
    """Saves the adapter; returns the tensors after merge_and_unload."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(task_type="CAUSAL_LM", **options))
    fill(model, lambda name: "lora_" in name or "modules_to_save" in name)
    model.save_pretrained(directory)
    return model.merge_and_unload().state_dict()


def digest(t):
    t = t.to(torch.float64).flatten()
    weights = torch.tensor([math.cos(0.3 * i) for i in range(t.numel())], dtype=torch.float64)
    return [float(t[0]), float(t[-1]), float((t * weights).sum()), float((t * t).sum())]


def describe(directory, merged):
    with open(os.path.join(directory, "adapter_config.json")) as f:
        config = json.load(f)
    config["base_model_name_or_path"] = None
    for key in ("target_modules", "modules_to_save"):
        if isinstance(config.get(key), list):
            config[key] = sorted(config[key])
    tensors = load_file(os.path.join(directory, "adapter_model.safetensors"))
    return {"config": config, "tensors": {k: list(v.shape) for k, v in sorted(tensors.items())},
            "merged": {k: digest(v) for k, v in sorted(merged.items())}}


def name_in_model(tensor):
    """The name by which fill() knows a tensor of an adapter."""
    for part in ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector"):
        if tensor.endswith("." + part) or tensor.endswith("." + part + ".weight"):
            head = tensor[:tensor.rindex("." + part)]
            return f"{head}.{part}.default" + ("" if "embedding" in part else ".weight")
    module, leaf = tensor.rsplit(".", 1)
    return f"{module}.modules_to_save.default.{leaf}"


def rebuild(case, base, directory):
    """Writes the adapter that was recorded."""
    os.makedirs(directory)
    with open(os.path.join(directory, "adapter_config.json"), "w") as f:
        json.dump(case["config"], f)
    weights = load_file(os.path.join(base, "model.safetensors"))
    tensors = {}
    for k, shape in case["tensors"].items():
        if k.endswith(".base_layer.weight"):
            tensors[k] = weights[k.removeprefix("base_model.model.").replace(".base_layer", "")].reshape(shape)
        elif "embed_tokens.weight" in k or ("lm_head.weight" in k and "lm_head" not in (case["config"]["modules_to_save"] or [])):
            tensors[k] = weights[k.removeprefix("base_model.model.")]
        else:
            magnitude = "magnitude" in k
            tensors[k] = values(name_in_model(k), shape, 1.0 if magnitude else 0.1) + (2.0 if magnitude else 0.0)
    save_file(tensors, os.path.join(directory, "adapter_model.safetensors"), metadata={"format": "pt"})


def export(dtrain, *arguments, fails=None):
    p = subprocess.run([dtrain, "export", *arguments], capture_output=True, text=True)
    if fails is None:
        assert p.returncode == 0, (arguments, p.stderr)
    else:
        assert p.returncode == 1 and fails in p.stderr and p.stderr.count("\n") == 1, (arguments, p.returncode, p.stderr)
    return p.stdout


def load(directory):
    """All tensors of a directory, sharded or not."""
    tensors = {}
    for f in sorted(os.listdir(directory)):
        if f.endswith(".safetensors"):
            tensors.update(load_file(os.path.join(directory, f)))
    return tensors


def main(dtrain, tmp):
    try:
        import peft
    except ImportError:
        peft = None
    with open(recorded) as f:
        known = json.load(f)
    print(f"peft: {peft.__version__ + ', live' if peft else known['peft'] + ', recorded'}")
    for name in bases:
        make_base(name, f"{tmp}/{name}")
    worst = 0.0
    for name, base, options in cases:
        directory, out = f"{tmp}/adapter-{name}", f"{tmp}/out-{name}"
        if peft:
            merged = peft_case(f"{tmp}/{base}", options, directory)
        else:
            rebuild(known["cases"][name], f"{tmp}/{base}", directory)
        export(dtrain, "--adapter", directory, f"{tmp}/{base}", out)
        model = AutoModelForCausalLM.from_pretrained(out).state_dict()
        if peft:
            assert sorted(model) == sorted(merged)
            for k, v in merged.items():
                worst = max(worst, float((model[k] - v).abs().max() / v.abs().max()))
        else:
            want = known["cases"][name]["merged"]
            assert sorted(model) == sorted(want)
            for k, v in want.items():
                size = max(abs(x) for x in v)
                worst = max(worst, max(abs(a - b) / size for a, b in zip(digest(model[k]), v)))
        # The adapter has changed something.
        before = load(f"{tmp}/{base}")
        assert any(not torch.equal(before[k], v) for k, v in load(out).items() if k in before), name
    print(f"merged weights: worst relative difference {worst:.1e} over {len(cases)} adapters")
    assert worst < 1e-5, worst
    resharded(dtrain, tmp)
    tied(dtrain, tmp)
    quantized(dtrain, tmp)
    refused(dtrain, tmp)
    large(dtrain, tmp)


def resharded(dtrain, tmp):
    """Number formats and file sizes."""
    whole = load(f"{tmp}/llama")
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        out = f"{tmp}/cast-{precision}"
        export(dtrain, "--precision", precision, "--max-shard-size", "4KB", f"{tmp}/llama", out)
        with open(f"{out}/model.safetensors.index.json") as f:
            index = json.load(f)
        shards = sorted(set(index["weight_map"].values()))
        assert len(shards) > 2 and all(os.path.exists(f"{out}/{s}") for s in shards), shards
        got = load(out)
        assert sorted(got) == sorted(whole) == sorted(index["weight_map"])
        assert all(torch.equal(got[k], v.to(dtype)) for k, v in whole.items())
        assert AutoConfig.from_pretrained(out).dtype == dtype
    # bf16 and back: each tensor keeps its type without --precision. The merged weight is rounded once.
    export(dtrain, "--adapter", f"{tmp}/adapter-lora", "--precision", "bf16", f"{tmp}/llama", f"{tmp}/merged-bf16")
    exact = load(f"{tmp}/out-lora")
    assert all(torch.equal(v, exact[k].to(torch.bfloat16)) for k, v in load(f"{tmp}/merged-bf16").items())
    export(dtrain, f"{tmp}/merged-bf16", f"{tmp}/again")
    assert all(v.dtype == torch.bfloat16 for v in load(f"{tmp}/again").values())
    # An adapter alone.
    export(dtrain, "--precision", "bf16", f"{tmp}/adapter-dora", f"{tmp}/adapter-bf16")
    full, half = load(f"{tmp}/adapter-dora"), load(f"{tmp}/adapter-bf16")
    assert sorted(full) == sorted(half) and all(torch.equal(half[k], v.to(torch.bfloat16)) for k, v in full.items())
    with open(f"{tmp}/adapter-dora/adapter_config.json") as a, open(f"{tmp}/adapter-bf16/adapter_config.json") as b:
        assert a.read() == b.read()


def tied(dtrain, tmp):
    """An adapter of the output layer alone unties it from the embedding."""
    directory = f"{tmp}/adapter-tied"
    os.makedirs(directory)
    head = values("head", (40, 16))
    with open(f"{directory}/adapter_config.json", "w") as f:
        json.dump({"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, f)
    tensors = {"base_model.model.lm_head.weight": head}
    for layer in range(2):
        tensors[f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_A.weight"] = values("a", (2, 16))
        tensors[f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_B.weight"] = values("b", (16, 2))
    save_file(tensors, f"{directory}/adapter_model.safetensors", metadata={"format": "pt"})
    export(dtrain, "--adapter", directory, f"{tmp}/tied", f"{tmp}/untied")
    model = AutoModelForCausalLM.from_pretrained(f"{tmp}/untied")
    assert not model.config.tie_word_embeddings and torch.equal(model.lm_head.weight, head)
    assert torch.equal(model.model.embed_tokens.weight, load(f"{tmp}/tied")["model.embed_tokens.weight"])


    # A config.json without the key has the family's default.
    for base in ("gpt2", "llama"):
        model = f"{tmp}/{base}-no-key"
        shutil.copytree(f"{tmp}/{base}", model)
        with open(f"{model}/config.json") as f:
            config = json.load(f)
        config.pop("tie_word_embeddings", None)
        with open(f"{model}/config.json", "w") as f:
            json.dump(config, f)
        embedding, name = ("wte", "transformer.wte.weight") if base == "gpt2" else ("embed_tokens", "model.embed_tokens.weight")
        os.makedirs(f"{tmp}/adapter-{base}-no-key")
        with open(f"{tmp}/adapter-{base}-no-key/adapter_config.json", "w") as f:
            json.dump({"peft_type": "LORA", "r": 2, "target_modules": [], "modules_to_save": [embedding]}, f)
        save_file({f"base_model.model.{name}": head}, f"{tmp}/adapter-{base}-no-key/adapter_model.safetensors", metadata={"format": "pt"})
        export(dtrain, "--adapter", f"{tmp}/adapter-{base}-no-key", model, f"{tmp}/out-{base}-no-key")
        merged = AutoModelForCausalLM.from_pretrained(f"{tmp}/out-{base}-no-key")
        kept = load(model)[name if base == "gpt2" else "lm_head.weight"]
        assert not merged.config.tie_word_embeddings and torch.equal(merged.lm_head.weight, kept), base
        assert torch.equal(merged.get_input_embeddings().weight, head), base


def quantized(dtrain, tmp):
    """NF4 of bitsandbytes becomes plain weights, with an adapter in them, too."""
    table = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334, -0.09105003625154495,
             0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
             0.7229568362236023, 1.0]
    directory, name = f"{tmp}/nf4", "model.layers.0.self_attn.q_proj.weight"
    os.makedirs(directory)
    tensors = load(f"{tmp}/llama")
    codes, absmax = torch.arange(256) * 7 % 16, torch.tensor([0.5, 1.0, 0.25, 2.0])
    tensors[name] = (codes[0::2] * 16 + codes[1::2]).to(torch.uint8)[:, None]
    tensors[f"{name}.absmax"], tensors[f"{name}.quant_map"] = absmax, torch.tensor(table)
    state = json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [16, 16]})
    tensors[f"{name}.quant_state.bitsandbytes__nf4"] = torch.tensor(list(state.encode()), dtype=torch.uint8)
    save_file(tensors, f"{directory}/model.safetensors")
    with open(f"{tmp}/llama/config.json") as f, open(f"{directory}/config.json", "w") as g:
        json.dump(json.load(f) | {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}}, g)
    plain = (torch.tensor(table)[codes] * absmax.repeat_interleave(64)).reshape(16, 16)
    export(dtrain, directory, f"{tmp}/nf4-plain")
    model = AutoModelForCausalLM.from_pretrained(f"{tmp}/nf4-plain")
    assert not hasattr(model.config, "quantization_config") and torch.equal(model.state_dict()[name], plain)
    export(dtrain, "--adapter", f"{tmp}/adapter-lora", directory, f"{tmp}/nf4-merged")
    a = load(f"{tmp}/adapter-lora")
    prefix = "base_model.model." + name.removesuffix("weight")
    want = plain + 2.0 * (a[f"{prefix}lora_B.weight"] @ a[f"{prefix}lora_A.weight"])
    assert torch.allclose(load(f"{tmp}/nf4-merged")[name], want, rtol=1e-6, atol=1e-7)
    # gpt2's matrices lie turned in 4 bits, and not where they are plain.
    with open(f"{directory}/config.json") as f:
        config = json.load(f)
    with open(f"{directory}/config.json", "w") as f:
        json.dump(config | {"model_type": "gpt2"}, f)
    export(dtrain, directory, f"{tmp}/nf4-turned", fails="the matrices of gpt2 in 4 bits are stored transposed")


def refused(dtrain, tmp):
    def same(out):
        assert not os.path.exists(out) and not os.path.exists(f"{tmp}/.{os.path.basename(out)}.partial")

    no = f"{tmp}/refused"
    export(dtrain, f"{tmp}/llama", f"{tmp}/tied", fails="exists already")
    export(dtrain, "--overwrite", f"{tmp}/llama", f"{tmp}/llama", fails="which is read")
    export(dtrain, "--overwrite", f"{tmp}/llama", tmp, fails="which is read")
    os.makedirs(f"{tmp}/home/documents")
    export(dtrain, "--overwrite", f"{tmp}/llama", f"{tmp}/home", fails="not the directory of a model")
    export(dtrain, "--adapter", f"{tmp}/adapter-gpt2", f"{tmp}/llama", no, fails="the base has no transformer.h.0")
    make_other(f"{tmp}/other")
    export(dtrain, "--adapter", f"{tmp}/adapter-lora", f"{tmp}/other", no, fails="it is another model")
    export(dtrain, "--adapter", f"{tmp}/nowhere", f"{tmp}/llama", no, fails="adapter_config.json")
    for method in ("gptq", "awq"):
        os.makedirs(f"{tmp}/{method}")
        with open(f"{tmp}/llama/config.json") as f, open(f"{tmp}/{method}/config.json", "w") as g:
            json.dump(json.load(f) | {"quantization_config": {"quant_method": method, "bits": 4}}, g)
        export(dtrain, f"{tmp}/{method}", no, fails=f"quant_method: {method}")
    # A damaged adapter: truncated, and with a value that is not a number.
    for kind in ("short", "nan"):
        os.makedirs(f"{tmp}/{kind}")
        with open(f"{tmp}/adapter-lora/adapter_config.json") as f, open(f"{tmp}/{kind}/adapter_config.json", "w") as g:
            g.write(f.read())
        tensors = load(f"{tmp}/adapter-lora")
        if kind == "nan":
            next(iter(tensors.values()))[0, 0] = float("nan")
        save_file(tensors, f"{tmp}/{kind}/adapter_model.safetensors")
    os.truncate(f"{tmp}/short/adapter_model.safetensors", os.path.getsize(f"{tmp}/short/adapter_model.safetensors") - 4)
    export(dtrain, "--adapter", f"{tmp}/short", f"{tmp}/llama", no, fails="truncated")
    export(dtrain, "--adapter", f"{tmp}/nan", f"{tmp}/llama", no, fails="NaN")
    # fp16 does not hold everything.
    tensors = load(f"{tmp}/llama")
    tensors["model.norm.weight"][3] = 1e6
    os.makedirs(f"{tmp}/large")
    with open(f"{tmp}/llama/config.json") as f, open(f"{tmp}/large/config.json", "w") as g:
        g.write(f.read())
    save_file(tensors, f"{tmp}/large/model.safetensors")
    export(dtrain, "--precision", "fp16", f"{tmp}/large", no, fails="element 3 is 1e+06, which fp16 cannot hold")
    same(no)
    # What a killed export left behind does not matter; an existing model is replaced as a whole.
    os.makedirs(f"{tmp}/.tied.partial/rest")
    export(dtrain, "--overwrite", f"{tmp}/llama", f"{tmp}/tied")
    assert not os.path.exists(f"{tmp}/.tied.partial") and "lm_head.weight" in load(f"{tmp}/tied")


def make_other(directory):
    config = LlamaConfig(**(llama | dict(hidden_size=32)), tie_word_embeddings=False)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(directory)


def peak(pid):
    """The most memory that a process has had so far, in bytes; None: it has ended."""
    with open(f"/proc/{pid}/status") as f:
        for line in f:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def large(dtrain, tmp):
    """Memory stays below two tensors, and a killed export leaves nothing under its name."""
    config = LlamaConfig(**(llama | dict(vocab_size=24000, hidden_size=512)), tie_word_embeddings=False)
    tensor = 24000 * 512 * 4
    os.makedirs(f"{tmp}/large-base")
    config.save_pretrained(f"{tmp}/large-base")
    weights = {n: torch.full((24000, 512), 0.5) for n in ("model.embed_tokens.weight", "lm_head.weight", "a", "b")}
    save_file(weights, f"{tmp}/large-base/model.safetensors")
    os.makedirs(f"{tmp}/large-adapter")
    with open(f"{tmp}/large-adapter/adapter_config.json", "w") as f:
        json.dump({"peft_type": "LORA", "r": 16, "lora_alpha": 16, "target_modules": ["lm_head"]}, f)
    save_file({"base_model.model.lm_head.lora_A.weight": torch.full((16, 512), 0.5),
               "base_model.model.lm_head.lora_B.weight": torch.full((24000, 16), 0.5)}, f"{tmp}/large-adapter/adapter_model.safetensors")
    command = [dtrain, "export", "--adapter", f"{tmp}/large-adapter", "--precision", "bf16", f"{tmp}/large-base", f"{tmp}/large-out"]
    # Killed while it writes.
    p = subprocess.Popen(command)
    written = f"{tmp}/.large-out.partial/model.safetensors"
    while not (os.path.exists(written) and os.path.getsize(written) > tensor // 8):
        assert p.poll() is None
        time.sleep(0.001)
    p.send_signal(signal.SIGKILL)
    p.wait()
    assert not os.path.exists(f"{tmp}/large-out")
    # The next one is not disturbed by what that left.
    p, most = subprocess.Popen(command, stdout=subprocess.DEVNULL), 0
    while p.poll() is None:
        most = max(most, peak(p.pid) or 0)
        time.sleep(0.002)
    assert p.returncode == 0 and not os.path.exists(f"{tmp}/.large-out.partial")
    got = load(f"{tmp}/large-out")
    assert torch.equal(got["lm_head.weight"], torch.full((24000, 512), 4.5, dtype=torch.bfloat16))
    print(f"most memory: {most / 2**20:.0f} MiB; the largest of four tensors has {tensor / 2**20:.0f} MiB")
    assert 0 < most < 2 * tensor


def record(tmp):
    import peft

    result = {"peft": peft.__version__, "cases": {}}
    for name in bases:
        make_base(name, f"{tmp}/{name}")
    for name, base, options in cases:
        merged = peft_case(f"{tmp}/{base}", options, f"{tmp}/adapter-{name}")
        result["cases"][name] = describe(f"{tmp}/adapter-{name}", merged)
    with open(recorded, "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")


if sys.argv[1] == "--record":
    record(sys.argv[2])
else:
    main(sys.argv[1], sys.argv[2])
