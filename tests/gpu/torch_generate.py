#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peer of the part rewards of tests/gpu/run: completions by transformers' generate(), of a model from nothing.

torch_generate.py CONFIG_JSON --rows N --each N --prompt N --tokens N [--device cuda|cpu] [--precision bf16|fp32]

Of each prompt --each completions, --rows in all. Samples of the whole vocabulary at temperature 1, SDPA attention, the cache that generate() takes by itself. Prints one line of JSON: tokens_per_second,
of the better of two rounds after a first one.
"""
import argparse, json, os, time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
parser = argparse.ArgumentParser()
parser.add_argument("config")
parser.add_argument("--rows", type=int, required=True)
parser.add_argument("--each", type=int, required=True)
parser.add_argument("--prompt", type=int, required=True)
parser.add_argument("--tokens", type=int, required=True)
parser.add_argument("--device", default="cuda")
parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
options = parser.parse_args()

import torch
import transformers

transformers.logging.set_verbosity_error()
keys = json.load(open(options.config))
config = transformers.AutoConfig.for_model(keys.pop("model_type"), **keys)
torch.manual_seed(0)
with torch.device(options.device):
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16 if options.precision == "bf16" else torch.float32).eval()
    prompts = torch.randint(0, 256, (options.rows // options.each, options.prompt))
settings = transformers.GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, num_return_sequences=options.each, max_new_tokens=options.tokens, min_new_tokens=options.tokens, pad_token_id=0)


def generate():
    begun = time.perf_counter()
    with torch.no_grad():
        out = model.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=settings)
    assert out.shape == (options.rows, options.prompt + options.tokens), out.shape
    out[0, -1].item()
    return time.perf_counter() - begun


generate()
print(json.dumps({"tokens_per_second": options.rows * options.tokens / min(generate(), generate()), "torch": torch.__version__, "transformers": transformers.__version__}))
