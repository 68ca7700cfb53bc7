#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Losses, logits and every gradient against transformers' own models, for one small config of each family.

families.py GRAD_DUMP [fp32] [bf16]; FAMILIES="CASE" in the environment: that case alone.
families.py GRAD_DUMP random FAMILY COUNT [SEED]: as many random configurations of a family instead, and where LOGITS in
the environment is that program, 64 tokens of greedy generation of each.

In fp32 the relative error of every tensor is below 1e-4; of one where transformers itself is further than that from float64, no
more than twice transformers' error. In bf16 no worse than three times what transformers' own model in
bf16 is away from itself in fp32.

Random weights are saved by save_pretrained, read by us. Documents of odd lengths are packed into one row here and
run one by one there. Exits 77 (skipped) without torch and transformers.
"""
import copy, json, os, random, subprocess, sys, tempfile

try:
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
# The row of a padding token would get no gradient in torch.
BASE = dict(vocab_size=131, pad_token_id=None, bos_token_id=1, eos_token_id=2, max_position_embeddings=128, initializer_range=0.2, rms_norm_eps=1e-5)


def shape(hidden, heads, kv, dim, intermediate, layers=3):
    return dict(hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv, head_dim=dim,
                intermediate_size=intermediate, num_hidden_layers=layers)


def llama(**k):
    return transformers.LlamaConfig(**BASE, **k)


def mistral(**k):
    return transformers.MistralConfig(**BASE, **k)


def qwen2(**k):
    return transformers.Qwen2Config(**BASE, **k)


def qwen3(**k):
    return transformers.Qwen3Config(**BASE, **k)


CASES = {
    "llama, llama3 rope, tied": lambda: llama(**shape(64, 4, 2, 16, 88), rope_parameters=LLAMA3, tie_word_embeddings=True),
    "llama, untied, head 64": lambda: llama(**shape(128, 2, 1, 64, 96), tie_word_embeddings=False),
    "llama, all biases": lambda: llama(**shape(48, 3, 3, 16, 72), attention_bias=True, mlp_bias=True),
    "llama, linear rope": lambda: llama(**shape(32, 2, 2, 16, 40), rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    "mistral, window 7": lambda: mistral(**shape(64, 4, 2, 16, 88), sliding_window=7),
    "mistral, no window, tied": lambda: mistral(**shape(64, 4, 1, 32, 88), sliding_window=None, tie_word_embeddings=True),
    "qwen2, tied": lambda: qwen2(**{k: v for k, v in shape(64, 4, 2, 16, 88).items() if k != "head_dim"}, tie_word_embeddings=True),
    "qwen2, untied, window from layer 1": lambda: qwen2(**{k: v for k, v in shape(96, 6, 2, 16, 72).items() if k != "head_dim"}, use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "qwen3, head 96, tied": lambda: qwen3(**shape(64, 2, 1, 96, 88), tie_word_embeddings=True),
    "qwen3, untied": lambda: qwen3(**shape(64, 4, 2, 64, 88)),
}


# Heads of q, of k and v, and their size; the sizes that other families take from the hidden size are their product.
def smollm3(**k):
    return transformers.SmolLM3Config(**BASE, **k)


def granite(**k):
    return transformers.GraniteConfig(**BASE, **k)


def olmo2(**k):
    return transformers.Olmo2Config(**BASE, **k)


def olmo3(**k):
    return transformers.Olmo3Config(**BASE, **k)


def phi3(**k):
    return transformers.Phi3Config(**BASE, **k)


def gemma2(**k):
    return transformers.Gemma2Config(**BASE, **k)


def gemma3(**k):
    return transformers.Gemma3TextConfig(**BASE, **k)


def gpt2(hidden, heads, layers, **k):
    return transformers.GPT2Config(**{key: v for key, v in BASE.items() if key not in ("max_position_embeddings", "rms_norm_eps")}, n_positions=128,
                                   n_embd=hidden, n_head=heads, n_layer=layers, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **k)


def longrope(pairs, original, r=random.Random(3), **k):
    return {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [r.uniform(1, 2) for _ in range(pairs)],
            "long_factor": [r.uniform(2, 8) for _ in range(pairs)], "original_max_position_embeddings": original, **k}


def without_head_dim(**k):
    return {key: v for key, v in k.items() if key != "head_dim"}


def square(heads, kv, dim, intermediate, layers=3):
    """Sizes of a family whose heads together are as wide as the model."""
    return without_head_dim(**shape(heads * dim, heads, kv, dim, intermediate, layers))


CASES |= {
    "smollm3, tied": lambda: smollm3(**square(4, 2, 16, 88, 4), tie_word_embeddings=True),
    "smollm3, untied, two layers without rotation, window": lambda: smollm3(
        **square(3, 1, 16, 72), no_rope_layers=[0, 1, 0], use_sliding_window=True, sliding_window=6, tie_word_embeddings=False),
    "granite, multipliers, tied": lambda: granite(
        **square(4, 2, 16, 88), embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.3, logits_scaling=5.0,
        tie_word_embeddings=True),
    "olmo2": lambda: olmo2(**square(4, 2, 16, 88)),
    "olmo3, window 5, yarn": lambda: olmo3(
        **square(4, 2, 16, 88, 4), sliding_window=5,
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                         "full_attention": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 16}}),
}


CASES |= {
    "phi3, window 6": lambda: phi3(**square(4, 2, 16, 88), sliding_window=6),
    "phi3, partial rotation, longrope, tied": lambda: phi3(
        **square(4, 2, 16, 88), original_max_position_embeddings=64, tie_word_embeddings=True,
        rope_parameters=longrope(4, 64, partial_rotary_factor=0.5)),
    "gemma2, caps, window 5": lambda: gemma2(**shape(64, 4, 2, 24, 88, 4), sliding_window=5, query_pre_attn_scalar=40, attn_logit_softcapping=2.0,
                                             final_logit_softcapping=3.0),
    "gemma3, window 5": lambda: gemma3(
        **shape(64, 4, 2, 24, 88, 4), sliding_window=5, layer_types=["sliding_attention", "full_attention"] * 2,
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                         "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0}}),
    "gpt2": lambda: gpt2(64, 4, 3),
    "gpt2, untied, inner 40": lambda: gpt2(48, 3, 2, n_inner=40, tie_word_embeddings=False),
}


# Families whose constructors need nothing but the sizes and what BASE has.
PLAIN = {name: getattr(transformers, f"{kind}Config") for name, kind in {
    "gemma": "Gemma", "glm": "Glm", "glm4": "Glm4", "ernie4_5": "Ernie4_5", "helium": "Helium", "seed_oss": "SeedOss", "ministral": "Ministral",
    "exaone4": "Exaone4", "starcoder2": "Starcoder2", "stablelm": "StableLm", "ministral3": "Ministral3"}.items()}
# Queries are scaled from the eighth token on, and again from the sixteenth.
SCALED = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.3, "mscale": 1.0, "mscale_all_dim": 1.0}


def of_family(family, **k):
    return PLAIN[family](**BASE, **k)


CASES |= {
    "gemma": lambda: of_family("gemma", **shape(64, 4, 2, 24, 88)),
    "glm": lambda: of_family("glm", **shape(64, 4, 2, 24, 88)),
    "glm4, whole heads rotated, no bias": lambda: of_family("glm4", **shape(64, 4, 2, 16, 88), attention_bias=False, partial_rotary_factor=1.0),
    "glm4, half of heads rotated, tied": lambda: of_family("glm4", **shape(64, 4, 1, 32, 72), tie_word_embeddings=True),
    "ernie4_5": lambda: of_family("ernie4_5", **shape(64, 4, 2, 24, 88)),
    "ernie4_5, biases, untied": lambda: of_family("ernie4_5", **shape(64, 4, 2, 16, 88), use_bias=True, tie_word_embeddings=False),
    "helium": lambda: of_family("helium", **shape(64, 4, 2, 16, 88)),
    "seed_oss": lambda: of_family("seed_oss", **shape(64, 4, 2, 24, 88), attention_dropout=0.0, residual_dropout=0.0),
    "seed_oss, the other biases": lambda: of_family("seed_oss", **shape(64, 4, 2, 24, 88), attention_dropout=0.0, residual_dropout=0.0, attention_bias=False,
                                                attention_out_bias=True, mlp_bias=True),
    "ministral, window 6": lambda: of_family("ministral", **shape(64, 4, 2, 24, 88), sliding_window=6),
    "ministral, window in layer 1": lambda: of_family("ministral", **shape(64, 4, 2, 24, 88), sliding_window=6, layer_types=["full_attention", "sliding_attention",
                                                                                                                       "full_attention"]),
    "ministral3, scaled queries, window 9": lambda: of_family("ministral3", **shape(64, 4, 2, 24, 88), rope_parameters=SCALED, sliding_window=9),
    "llama, dynamic rope, documents within the context": lambda: llama(**shape(32, 2, 2, 16, 40), rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
    "exaone4, window 5": lambda: of_family("exaone4", **square(4, 2, 16, 88, 4), sliding_window=5),
    "exaone4, no window": lambda: of_family("exaone4", **square(4, 2, 16, 88), sliding_window=None, layer_types=["full_attention"] * 3),
    "starcoder2, window 7": lambda: of_family("starcoder2", **square(4, 2, 16, 88), sliding_window=7),
    "starcoder2, no biases, untied": lambda: of_family("starcoder2", **square(3, 1, 16, 88), use_bias=False, tie_word_embeddings=False),
    "stablelm": lambda: of_family("stablelm", **square(4, 2, 16, 88)),
    "stablelm, biases, half of heads rotated": lambda: of_family("stablelm", **square(4, 2, 16, 88), use_qkv_bias=True, partial_rotary_factor=0.5),
}


def qwen3_5(**k):
    return transformers.Qwen3_5TextConfig(**BASE, **k)


def linear_attention(key_heads, value_heads, key_dim, value_dim, width=4):
    return dict(linear_num_key_heads=key_heads, linear_num_value_heads=value_heads, linear_key_head_dim=key_dim, linear_value_head_dim=value_dim,
                linear_conv_kernel_dim=width)


CASES |= {
    "qwen3_5_text": lambda: qwen3_5(**shape(64, 4, 2, 32, 88, 4), **linear_attention(2, 4, 16, 24), tie_word_embeddings=True),
    "qwen3_5_text, biases, layers in another order": lambda: qwen3_5(**shape(48, 2, 1, 16, 72), **linear_attention(3, 3, 8, 16, 3), attention_bias=True, layer_types=[
        "full_attention", "linear_attention", "full_attention"]),
}


def qwen3_moe(experts, chosen, width, **k):
    return transformers.Qwen3MoeConfig(**BASE, num_experts=experts, num_experts_per_tok=chosen, moe_intermediate_size=width, **k)


def mixtral(experts, chosen, **k):
    return transformers.MixtralConfig(**BASE, num_local_experts=experts, num_experts_per_tok=chosen, **k)


def olmoe(experts, chosen, **k):
    return transformers.OlmoeConfig(**BASE, num_experts=experts, num_experts_per_tok=chosen, **k)


CASES |= {
    "qwen3_moe, 2 of 6 experts": lambda: qwen3_moe(6, 2, 40, **shape(64, 4, 2, 24, 88)),
    "qwen3_moe, 3 of 20 experts whose weights are normalized, tied": lambda: qwen3_moe(20, 3, 24, **shape(48, 2, 1, 16, 88), norm_topk_prob=True,
                                                                                       tie_word_embeddings=True),
    "qwen3_moe, 1 of 4 experts, their loads balanced": lambda: qwen3_moe(4, 1, 40, **shape(64, 4, 2, 16, 88), output_router_logits=True,
                                                                         router_aux_loss_coef=0.3),
    "mixtral, 2 of 4 experts, window 7": lambda: mixtral(4, 2, **shape(64, 4, 2, 16, 56), sliding_window=7),
    "mixtral, 2 of 5 experts, their loads balanced": lambda: mixtral(5, 2, **shape(64, 4, 2, 16, 56), output_router_logits=True, router_aux_loss_coef=0.1),
    "olmoe, 4 of 9 experts": lambda: olmoe(9, 4, **square(4, 2, 16, 40)),
}


def random_rope(r):
    return r.choice([
        {"rope_type": "default", "rope_theta": r.choice([500.0, 1e4, 1e6])},
        {"rope_type": "linear", "rope_theta": 1e4, "factor": r.choice([2.0, 3.5])},
        {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
        {"rope_type": "yarn", "rope_theta": r.choice([1e3, 1e4]), "factor": r.choice([2.0, 8.0]), "original_max_position_embeddings": r.choice([8, 32]),
         **r.choice([{}, {"beta_fast": 8.0, "beta_slow": 2.0}, {"attention_factor": 0.9}, {"mscale": 0.7, "mscale_all_dim": 1.2}])},
    ])


def random_config(family, r):
    """A random small configuration of a family."""
    kv, group, layers = r.choice([1, 2, 3]), r.choice([1, 2, 3]), r.randint(1, 5)
    dim = r.choice([8, 16, 20, 32, 64])
    sizes = square(kv * group, kv, dim, r.choice([24, 40, 88, 130]), layers)
    rope, flag = random_rope(r), lambda: r.random() < 0.5
    tied = {"tie_word_embeddings": flag()}
    types = {"layer_types": [r.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]}
    own_dim = {"head_dim": r.choice([8, 16, 20, 32, 64])}
    if family == "smollm3":
        more = {"no_rope_layers": [r.randint(0, 1) for _ in range(layers)]} if flag() else {"no_rope_layer_interval": r.randint(1, 4)}
        return smollm3(**sizes, **tied, **more, rope_parameters=rope, attention_bias=flag(), mlp_bias=flag(), use_sliding_window=flag(),
                       sliding_window=r.choice([None, 4, 9]))
    if family == "granite":
        return granite(**sizes, **tied, rope_parameters=rope, attention_bias=flag(), mlp_bias=flag(), embedding_multiplier=r.uniform(0.5, 4),
                       attention_multiplier=r.uniform(0.05, 0.5), residual_multiplier=r.uniform(0.1, 1), logits_scaling=r.uniform(0.5, 8))
    if family == "olmo2":
        return olmo2(**sizes, **tied, rope_parameters=rope, attention_bias=flag())
    if family == "olmo3":
        return olmo3(**sizes, **tied, attention_bias=flag(), sliding_window=r.choice([3, 8]), **(types if flag() else {}),
                     rope_parameters={"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": r.choice([1e3, 1e4])}})
    if family == "phi3":
        partial = r.choice([1.0, 0.5])
        rope = longrope(int(dim * partial) // 2, 128, r) if flag() else {"rope_type": "default", "rope_theta": 1e4}
        return phi3(**sizes, **tied, sliding_window=r.choice([None, 4, 9]), original_max_position_embeddings=128,
                    rope_parameters={**rope, "partial_rotary_factor": partial})
    if family == "gemma2":
        return gemma2(**(sizes | own_dim), **tied, rope_parameters=rope, attention_bias=flag(), sliding_window=r.choice([3, 8]),
                      **(types if flag() else {}), query_pre_attn_scalar=r.choice([8, 40]), attn_logit_softcapping=r.choice([None, 1.0, 20.0]),
                      final_logit_softcapping=r.choice([None, 2.0, 30.0]))
    if family == "gemma3":
        return gemma3(**(sizes | own_dim), **tied, attention_bias=flag(), sliding_window=r.choice([3, 8]), **(types if flag() else {}),
                      query_pre_attn_scalar=r.choice([8, 40]), rope_parameters={
                          "full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": r.choice([1e3, 1e4])}})
    if family == "gpt2":
        return gpt2(sizes["hidden_size"], kv * group, layers, **tied, n_inner=r.choice([None, 40]), activation_function=r.choice(
            ["gelu_new", "gelu_pytorch_tanh"]))
    if family in ("qwen3_moe", "mixtral", "olmoe"):
        experts = r.choice([1, 2, 5, 8, 33])
        chosen = r.randint(1, min(experts, 5))
        moe = dict(**tied, rope_parameters=rope, output_router_logits=flag(), router_aux_loss_coef=r.uniform(0.01, 0.5))
        if family == "mixtral":
            return mixtral(experts, chosen, **(sizes | own_dim), **moe, sliding_window=r.choice([None, 3, 9]))
        moe |= dict(attention_bias=flag(), norm_topk_prob=flag())
        return olmoe(experts, chosen, **sizes, **moe) if family == "olmoe" else qwen3_moe(experts, chosen, r.choice([8, 24, 33, 40]), **(sizes | own_dim), **moe)
    if family == "qwen3_5_text":
        heads, factors = r.choice([1, 2, 3]), [f for f in (0.25, 0.5, 1.0) if int(own_dim["head_dim"] * f) % 2 == 0]
        return qwen3_5(**(sizes | own_dim), **tied, attention_bias=flag(), layer_types=[*(r.choice(["full_attention", "linear_attention"]) for _ in range(layers - 1)), "full_attention"],  # transformers generates with one
                       **linear_attention(heads, heads * r.choice([1, 2]), r.choice([8, 16, 20]), r.choice([8, 24, 32]), r.choice([2, 4])),
                       rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": r.choice(factors)})
    if family == "ministral3":
        scaled = {"original_max_position_embeddings": r.choice([4, 16, 64]), "llama_4_scaling_beta": r.choice([0.1, 0.5])}
        rope = r.choice([SCALED | scaled, {"rope_type": "default", "rope_theta": 1e4} | scaled, {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0} | scaled, None])
        return of_family(family, **(sizes | own_dim), **tied, rope_parameters=rope, sliding_window=r.choice([None, 3, 8]))
    if family in PLAIN:
        if family in ("gemma", "glm", "glm4", "ernie4_5", "seed_oss", "ministral"):
            sizes |= own_dim
        if family == "helium":
            sizes["head_dim"] = dim
        keys = {"glm": ["attention_bias"], "glm4": ["attention_bias"], "ernie4_5": ["use_bias"], "helium": ["attention_bias", "mlp_bias"],
                "seed_oss": ["attention_bias", "attention_out_bias", "mlp_bias"], "starcoder2": ["use_bias"], "stablelm": ["use_qkv_bias"],
                "gemma": ["attention_bias"]}.get(family, [])
        more = {key: flag() for key in keys}
        if family in ("glm", "glm4", "stablelm"):
            factors = [f for f in (0.25, 0.5, 1.0) if int(sizes.get("head_dim", dim) * f) % 2 == 0]
            rope = {"rope_type": "default", "rope_theta": r.choice([500.0, 1e4]), "partial_rotary_factor": r.choice(factors)}
        if family in ("ministral", "exaone4", "starcoder2"):
            more |= {"sliding_window": r.choice([3, 8] if family == "exaone4" else [None, 3, 8])}
        if family == "exaone4" or (family == "ministral" and more["sliding_window"] and flag()):
            more |= types
        if family == "seed_oss":
            more |= dict(attention_dropout=0.0, residual_dropout=0.0)
        return of_family(family, **sizes, **tied, **more, rope_parameters=rope)
    bias = dict(attention_bias=flag(), mlp_bias=flag())
    if family == "llama":
        return llama(**(sizes | own_dim), **tied, **bias, rope_parameters=rope)
    if family == "mistral":
        return mistral(**(sizes | own_dim), **tied, rope_parameters=rope, sliding_window=r.choice([None, 3, 9]))
    if family == "qwen2":
        return qwen2(**sizes, **tied, rope_parameters=rope, use_sliding_window=flag(), sliding_window=5, max_window_layers=r.randint(0, layers))
    if family == "qwen3":
        return qwen3(**(sizes | own_dim), **tied, rope_parameters=rope, attention_bias=bias["attention_bias"], use_sliding_window=flag(),
                     sliding_window=5, max_window_layers=r.randint(0, layers))
    sys.exit(f"no random configurations of {family}")


def relative(a, b):
    return ((a - b).norm() / b.norm().clamp_min(1e-30)).item()


def token_losses(logits, targets, flags):
    """The sum of the tokens' losses: cross-entropy, with transformers' label smoothing, or as LLaMA-Factory has it for DFT (_dft_cross_entropy)."""
    if "smoothed" in flags:
        smoother = transformers.trainer_pt_utils.LabelSmoother(epsilon=0.1)
        return smoother({"logits": logits}, targets) * len(targets)
    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    return (losses * torch.exp(-losses.detach()) if "dft" in flags else losses).sum()


def reference(model, documents, masked, flags=()):
    """Sum of the losses over their count, and the logits of all documents behind each other."""
    total, count, logits, routers = 0, 0, [], []
    balanced = getattr(model.config, "output_router_logits", False)
    for ids, skip in zip(documents, masked):
        result = model(input_ids=torch.tensor([ids]))
        out = result.logits[0]
        routers.append(result.router_logits if balanced else ())
        logits.append(out.detach())
        targets = torch.tensor(ids[1:], dtype=torch.long)
        first = max(skip - 1, 0)
        if first < len(targets):
            total = total + token_losses(out[first:-1].float(), targets[first:], flags)
        count += len(ids) - 1 - first
    loss = total / count
    if balanced:  # of all tokens of the batch together
        layers = tuple(torch.cat(layer) for layer in zip(*routers))
        balance = sys.modules[type(model).__module__].load_balancing_loss_func(layers, model.num_experts, model.num_experts_per_tok)
        loss = loss + model.config.router_aux_loss_coef * balance
    return loss, torch.cat(logits)


def named(ours, key):
    """Our tensor of a parameter of transformers, which has one matrix of all experts where a file has one of each."""
    block, _, kind = key.partition(".mlp.experts.")
    if key in ours or not kind:
        return ours[key] if key in ours else ours[key.replace(".mlp.gate.", ".block_sparse_moe.gate.")]
    mixtral = f"{block}.block_sparse_moe.gate.weight" in ours
    prefix, names = (f"{block}.block_sparse_moe.experts", ("w1", "w3", "w2")) if mixtral else (f"{block}.mlp.experts", ("gate_proj", "up_proj", "down_proj"))
    count = sum(name.startswith(prefix) and name.endswith(f".{names[0]}.weight") for name in ours)
    parts = [[ours[f"{prefix}.{e}.{name}.weight"] for name in (names[:2] if kind == "gate_up_proj" else names[2:])] for e in range(count)]
    return torch.stack([torch.cat(p) for p in parts])


def half_precision(model, documents, masked, flags):
    """Three times the worst relative error of transformers' gradients in bf16."""
    half = copy.deepcopy(model).to(torch.bfloat16)
    half.zero_grad()
    reference(half, documents, masked, flags)[0].backward()
    pairs = zip(half.parameters(), model.parameters())
    return 3 * max(relative(a.grad.float(), b.grad) for a, b in pairs)


def double_precision(model, documents, masked, flags):
    """The gradients in float64. transformers computes norms, softmax and logits in what it calls float32, which is float64 here."""
    double = copy.deepcopy(model).double()
    double.zero_grad()
    single, method = torch.float32, torch.Tensor.float
    try:
        torch.float32, torch.Tensor.float = torch.float64, torch.Tensor.double
        reference(double, documents, masked, flags)[0].backward()
    finally:
        torch.float32, torch.Tensor.float = single, method
    return {key: p.grad for key, p in double.named_parameters()}


def far_from_double(model, ours, exact):
    """Parameters whose gradients here are neither right nor as right as transformers'. The gradients of some are 0 but for rounding."""
    most = max(g.norm() for g in exact.values())
    for key, p in model.named_parameters():
        zero = exact[key].norm() < 1e-9 * most
        error, theirs = relative(named(ours, key).double(), exact[key]), relative(p.grad.double(), exact[key])
        if named(ours, key).norm() > 1e-5 * most if zero else error > 1e-4 and error > 2 * theirs:
            yield f"{key} {error:.1e} (transformers {theirs:.1e})"


def greedy(model, directory, ids):
    """Whether 64 tokens of transformers' greedy generation are the most probable ones by our logits, too."""
    out = model.generate(torch.tensor([ids]), max_new_tokens=64, do_sample=False, eos_token_id=None)[0].tolist()
    r = subprocess.run([os.environ["LOGITS"], directory, *map(str, out)], capture_output=True, check=True)
    best = torch.frombuffer(bytearray(r.stdout), dtype=torch.float32).reshape(len(out), -1).argmax(1).tolist()
    return best[len(ids) - 1:-1] == out[len(ids):]


def run(name, config, program, flags, documents, masked):
    if "bf16" in flags:  # with large weights the gradients of bf16 are noise
        config.initializer_range = 0.08
    torch.manual_seed(1)
    config._experts_implementation = "eager"  # of any width
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.dim() == 1:  # norms of 1 and biases of 0 would hide mistakes
                p.add_(0.3 * torch.randn_like(p))
    with tempfile.TemporaryDirectory() as d:
        model.save_pretrained(d)
        with open(d + "/batch.json", "w") as f:
            json.dump({"documents": documents, "masked": masked}, f)
        status = subprocess.run([program, d, d + "/batch.json", d + "/out", *flags]).returncode
        if status:  # the other families are still compared
            print(f"FAIL {name}{' ' + ' '.join(flags) if flags else ''}: {program} ended with status {status}", flush=True)
            return False
        ours = load_file(d + "/out/model.safetensors")
        same = "LOGITS" not in os.environ or greedy(model, d, documents[0])
    loss, logits = reference(model, documents, masked, flags)
    loss.backward()
    limit = half_precision(model, documents, masked, flags) if "bf16" in flags else 1e-4
    worst, where = abs(ours["loss"].item() - loss.item()) / loss.item(), "loss"
    if "logits" in ours and relative(ours["logits"], logits) > worst:
        worst, where = relative(ours["logits"], logits), "logits"
    for key, p in model.named_parameters():
        e = relative(named(ours, key), p.grad)
        if e > worst:
            worst, where = e, key
    if worst >= limit and "bf16" not in flags and where not in ("loss", "logits"):
        far = [*far_from_double(model, ours, double_precision(model, documents, masked, flags))]
        print(f"     {where} {worst:.1e} from transformers; far from float64: {', '.join(far) or 'none'}")
        worst = worst if far else 0
    print(f"{'ok  ' if worst < limit and same else 'FAIL'} {name}{' ' + ' '.join(flags) if flags else ''}: loss {loss.item():.7f}, worst {where} {worst:.1e} (limit {limit:.1e}){'' if same else ', other tokens'}")
    return worst < limit and same


def main():
    program = sys.argv[1]
    torch.manual_seed(7)
    documents = [torch.randint(0, BASE["vocab_size"], (n,)).tolist() for n in (23, 1, 37, 8, 2)]
    plain, prompts, good = [0] * 5, [20, 0, 11, 0, 0], True
    if "random" in sys.argv:
        family, count, seed = sys.argv[3], int(sys.argv[4]), int(sys.argv[5]) if len(sys.argv) > 5 else 1
        for i in range(seed, seed + count):
            r = random.Random(f"{family} {i}")
            config, masked = random_config(family, r), r.choice([plain, prompts])
            config.initializer_range = min(0.2, 1.6 / config.hidden_size ** 0.5)  # else rounding errors grow from layer to layer
            flags = r.choice([[], ["recompute"], ["selective"], ["outputs"]])
            good &= run(f"{family} {i} {flags} {'masked' if masked is prompts else ''}", config, program, flags, documents, masked)
        sys.exit(0 if good else 1)
    for name, make in CASES.items():
        if os.environ.get("FAMILIES") not in (None, "", name):
            continue
        for precision in sys.argv[2:] or ["fp32"]:
            flags = ["bf16"] if precision == "bf16" else []
            good &= run(name, make(), program, flags, documents, plain)
            good &= run(name + ", prompts masked", make(), program, [*flags, "recompute"], documents, prompts)
            if name.startswith(("llama, llama3", "gemma2")):
                good &= run(name, make(), program, [*flags, "smoothed"], documents, prompts)
                good &= run(name, make(), program, [*flags, "dft"], documents, plain)
    sys.exit(0 if good else 1)


main()
