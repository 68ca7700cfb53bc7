#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares NF4 with bitsandbytes and transformers on the processor: nf4.py PROGRAMS, the directory with nf4_dump and logits. Exit status 77
without bitsandbytes.

Codes and scales have to be the same bytes. bitsandbytes' kernels for processors differ from its own for GPUs, whose bytes ours are, in two
places, which are told apart here: they divide by a scale instead of multiplying by its reciprocal, so that a number on the border of two
codes may get the other; and they do not always take the nearest code of a scale's 8 bits. The mean of the scales is a sum in another order.
"""
import pathlib
import subprocess
import sys
import tempfile

try:
    import bitsandbytes
    import bitsandbytes.functional as functional
    import torch
    import transformers
except ImportError as e:
    print(f"nf4: {e}")
    sys.exit(77)

PROGRAMS = pathlib.Path(sys.argv[1])
# Of Qwen2.5-0.5B, of Llama-3.2-1B (cut), and odd ones.
SHAPES = [(896, 896), (128, 896), (4864, 896), (896, 4864), (2048, 512), (64, 100), (3, 77), (1, 1)]


def ours(x, twice):
    out = subprocess.run([PROGRAMS / "nf4_dump", "twice" if twice else "once"], input=x.float().numpy().tobytes(), capture_output=True, check=True)
    blocks, parts, at = (x.numel() + 63) // 64, {}, 0
    sizes = [("codes", (x.numel() + 1) // 2, torch.uint8)]
    sizes += [("absmax8", blocks, torch.uint8), ("absmax2", (blocks + 255) // 256, torch.float32), ("offset", 1, torch.float32)] if twice else [
        ("absmax", blocks, torch.float32)]
    for name, count, kind in sizes + [("values", x.numel(), torch.float32)]:
        size = count * kind.itemsize
        parts[name] = torch.frombuffer(bytearray(out.stdout[at:at + size]), dtype=kind)
        at += size
    assert at == len(out.stdout)
    return parts


def nibbles(codes, n):
    return torch.stack([codes >> 4, codes & 15], 1).flatten()[:n].int()


def check_tensor(x, twice):
    theirs, state = functional.quantize_4bit(x, quant_type="nf4", blocksize=64, compress_statistics=twice)
    got = ours(x, twice)
    n = x.numel()
    a, b = nibbles(theirs.flatten(), n), nibbles(got["codes"], n)
    differ = (a != b).nonzero().flatten()
    # A number on the border of two codes: as near to one as to the other.
    code = functional.get_4bit_type("nf4", device="cpu")
    for i in differ.tolist():
        block = x.flatten()[i // 64 * 64:i // 64 * 64 + 64].double()
        v = (x.flatten()[i].double() / block.abs().max()).item()
        assert abs(abs(v - code[a[i]].item()) - abs(v - code[b[i]].item())) < 2e-7, (i, v)
    assert len(differ) <= max(1, n // 1000000), len(differ)
    if not twice:
        assert torch.equal(state.absmax, got["absmax"])
        if not len(differ):
            assert torch.equal(functional.dequantize_4bit(theirs, state).flatten(), got["values"].to(x.dtype))
        return len(differ), 0
    assert torch.allclose(state.offset, got["offset"], rtol=1e-6)
    assert torch.allclose(state.state2.absmax, got["absmax2"], rtol=1e-5, atol=1e-8)
    absmax = ours(x, False)["absmax"]
    scale, blocks = got["absmax2"].repeat_interleave(256)[:absmax.numel()].double(), got["absmax8"].int()
    exact = (absmax.double() - got["offset"].double()) / scale
    table = state.state2.code.double()
    # Nowhere further from the exact scale than theirs, but for the rounding of the mean.
    mine, other = (table[blocks] - exact).abs(), (table[state.absmax.int()] - exact).abs()
    assert ((mine <= other + 1e-6) | exact.isnan()).all()
    return len(differ), (state.absmax.int() != blocks).sum().item()


def check_reference(x):
    """The same by bitsandbytes' own implementation in PyTorch, which takes the nearest code: bytes that differ, of codes and of scales' codes."""
    plain = torch._C.DispatchKey.CompositeExplicitAutograd
    codes, absmax = torch.ops.bitsandbytes.quantize_4bit.default._op_dk(plain, x, 64, "nf4", torch.uint8)
    once, twice, n = ours(x, False), ours(x, True), x.numel()
    assert torch.equal(absmax.flatten().float(), once["absmax"])
    of_codes = (nibbles(codes.flatten(), n) != nibbles(once["codes"], n)).sum().item()
    scales = torch.ops.bitsandbytes.quantize_blockwise.default._op_dk(plain, absmax.flatten().float() - twice["offset"], functional.create_dynamic_map(), 256)
    assert torch.equal(scales[1], twice["absmax2"])
    of_scales = (scales[0] != twice["absmax8"]).sum().item()
    assert of_codes <= max(1, n // 1000000) and of_scales <= 1
    return of_codes, of_scales


LLAMA = transformers.LlamaConfig(hidden_size=128, intermediate_size=320, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=512,
                                 max_position_embeddings=512)
GPT2 = transformers.GPT2Config(n_embd=128, n_inner=320, n_layer=2, n_head=4, vocab_size=512, n_positions=512)


def check_directories(folder, config):
    base, ids = folder / "base", [3, 77, 500, 12, 9, 256, 31]
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(base)
    for twice in (False, True):
        quantized = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=twice,
                                                    bnb_4bit_compute_dtype=torch.float32)
        model = transformers.AutoModelForCausalLM.from_pretrained(base, quantization_config=quantized, device_map="cpu")
        directory = folder / f"nf4-{twice}"
        model.save_pretrained(directory)
        for name, module in list(model.named_modules()):
            if isinstance(module, bitsandbytes.nn.Linear4bit):
                plain = torch.nn.Linear(module.in_features, module.out_features, bias=module.bias is not None)
                if module.bias is not None:
                    plain.bias.data = module.bias.data.float()
                plain.weight.data = functional.dequantize_4bit(module.weight.data, module.weight.quant_state).float().reshape(plain.weight.shape)
                parent, _, last = name.rpartition(".")
                setattr(model.get_submodule(parent), last, plain)
        with torch.no_grad():
            want = model(torch.tensor([ids])).logits[0]
        out = subprocess.run([PROGRAMS / "logits", directory, *map(str, ids)], capture_output=True)
        assert out.returncode == 0, out.stderr
        got = torch.frombuffer(bytearray(out.stdout), dtype=torch.float32).reshape(want.shape)
        error = (want - got).abs().max().item()
        print(f"a directory of transformers, {config.model_type}, double quantization {twice}: logits within {error:.2g}")
        assert error < 1e-5


torch.manual_seed(1)
for shape in SHAPES:
    weights = torch.randn(shape) * 0.02
    for kind in (torch.float32, torch.bfloat16):
        for double in (False, True):
            border, farther = check_tensor(weights.to(kind), double)
            print(f"{shape} {kind} double quantization {double}: {border} numbers on a border, {farther} scales that theirs have less near")
        if weights.numel() >= 64:  # The only scale of a block is its own mean: what is left is 0.
            print(f"{shape} {kind}: from bitsandbytes' implementation in PyTorch %d codes and %d codes of scales differ" % check_reference(weights.to(kind)))
for family in (LLAMA, GPT2):
    with tempfile.TemporaryDirectory() as temporary:
        check_directories(pathlib.Path(temporary), family)
