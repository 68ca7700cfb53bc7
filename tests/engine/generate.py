# SPDX-License-Identifier: Apache-2.0
# Compares sampling with the logits processors of transformers, and the task generate with its generate(): adapters,
# repetition penalty, stop strings, files of prompts. Arguments: worker, sampling_dump, the source tree, a directory.
import importlib.util, json, os, random, shutil, subprocess, sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Qwen3MoeConfig, logging
from transformers.generation.logits_process import (
    MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)

logging.set_verbosity_error()
logging.disable_progress_bar()
worker, sampling_dump, source, tmp = sys.argv[1:5]
seed = int(os.environ["SEED"])


def sampling():
    """The candidates and their probabilities, for random logits and options."""
    rng, g = random.Random(seed), torch.Generator().manual_seed(seed)
    cases, lines = [], []
    for i in range(200):
        vocab = rng.choice([3, 17, 200, 1000])
        logits = torch.randn(vocab, generator=g) * rng.choice([1.0, 3.0, 8.0])
        ids = [rng.randrange(vocab) for _ in range(rng.choice([0, 1, 5, 40]))]
        temperature, penalty = rng.choice([0.5, 1.0, 1.7]), rng.choice([1.0, 1.3, 0.8])
        k, top_p, min_p = rng.choice([0, 2, 10, 5000]), rng.choice([1.0, 0.9, 0.3]), rng.choice([0.0, 0.05, 0.5, 1.0])
        cases.append((logits, ids, temperature, k, top_p, min_p, penalty))
        lines.append(" ".join(map(str, [temperature, k, top_p, min_p, penalty, len(ids), *ids, vocab, *[f"{x:.9g}" for x in logits.tolist()]])))
    out = subprocess.run([sampling_dump], input="\n".join(lines), capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(out) == len(cases)
    worst, edges = 0.0, 0
    for line, (logits, ids, temperature, k, top_p, min_p, penalty) in zip(out, cases):
        past = torch.tensor([ids], dtype=torch.long)
        scores = logits[None].clone()
        if penalty != 1.0 and ids:
            scores = RepetitionPenaltyLogitsProcessor(penalty)(past, scores)
        scores = TemperatureLogitsWarper(temperature)(past, scores)
        if k:
            scores = TopKLogitsWarper(k)(past, scores)
        if top_p < 1:
            scores = TopPLogitsWarper(top_p)(past, scores)
        if min_p > 0:
            scores = MinPLogitsWarper(min_p)(past, scores)
        want = torch.softmax(scores[0], -1)
        got = torch.zeros_like(want)
        for item in line.split():
            token, p = item.split(":")
            got[int(token)] = float(p)
        # A token that is 2^39 times less likely than the likeliest has no probability here.
        others = int((((want > 0) ^ (got > 0)) & (torch.maximum(want, got) > 2.0**-38 * want.max())).sum())
        if others:
            # The sums of transformers are in fp32, so that a token at the very edge of top_p may fall to either side.
            edges += 1
            assert others == 1, (k, top_p, min_p)
            continue
        worst = max(worst, float((want - got).abs().max()))
    print(f"sampling: worst difference of a probability {worst:.1e} in {len(cases)} cases, {edges} at the edge")
    assert worst < 1e-5 and edges <= 4


def value(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + len(shape) + shape[0]))


def run(model, options, fails=None, **members):
    config = {"task": "generate", "directory": tmp, "model": {"path": model}, "train": {"precision": "fp32"},
              "generate": {"max_new_tokens": 32, **options}, **members}
    with open(f"{tmp}/generate.json", "w") as f:
        json.dump(config, f)
    p = subprocess.run([worker], env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "DTRAIN_ATTEMPT": "1", "DTRAIN_CONFIG": f"{tmp}/generate.json"},
                       capture_output=True)
    # Not as text files are read, which would make "\n" of "\r": the texts are random.
    out, said = p.stdout.decode(), p.stderr.decode()
    if fails:
        assert p.returncode != 0 and fails in said + out, (options, out, said)
    else:
        assert p.returncode == 0, (options, out, said)
    return out


def run_file(model, options, **members):
    """Of a file of prompts: an object each. str.splitlines would know more ends of a line, which a text may contain."""
    return [json.loads(line) for line in run(model, options, **members).removesuffix("\n").split("\n")]


def make_model(directory, tied):
    # Weights of a size that makes the choice of tokens depend on the context.
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(LlamaConfig(
        vocab_size=264, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, initializer_range=0.2, tie_word_embeddings=tied, bos_token_id=None, eos_token_id=None), dtype=torch.float32)
    model.generation_config.bos_token_id = model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"{source}/tests/engine/bytes/{name}", directory)
    return model, AutoTokenizer.from_pretrained(directory)


def generation():
    directory, adapter = f"{tmp}/model", f"{tmp}/adapter"
    model, tokenizer = make_model(directory, False)
    # Text comes out as bytes: only those that are plain characters are compared, so that others are given no chance.
    with torch.no_grad():
        text = {i for i in range(264) if len(tokenizer.decode([i])) == 1 and tokenizer.decode([i]).isascii() and tokenizer.decode([i]).isprintable()}
        norm = model.lm_head.weight
        norm[[i for i in range(264) if i not in text]] = 0.0
    assert len(text) > 80
    model.save_pretrained(directory)

    os.makedirs(adapter)
    tensors = {}
    with open(f"{adapter}/adapter_config.json", "w") as f:
        json.dump({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], "modules_to_save": ["lm_head"]}, f)
    changed = AutoModelForCausalLM.from_pretrained(directory)
    with torch.no_grad():
        for name, p in changed.named_parameters():
            if name.endswith(("q_proj.weight", "down_proj.weight")):
                a, b = value(4, p.shape[1]) * 0.3, value(p.shape[0], 4) * 0.3
                module = "base_model.model." + name.removesuffix(".weight")
                tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"] = a, b
                p += 2.0 * (b @ a)
        changed.lm_head.weight *= 1.5
        tensors["base_model.model.lm_head.weight"] = changed.lm_head.weight.detach().clone()
    save_file(tensors, f"{adapter}/adapter_model.safetensors")

    def expect(m, prompt, **options):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        out = m.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=32, pad_token_id=0, **options)[0]
        return tokenizer.decode(out, skip_special_tokens=True)[len(tokenizer.decode(ids[0], skip_special_tokens=True)):]

    prompts = ["Hello", "The quick brown fox", "a b c"]
    for options, theirs in (({}, {}), ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3})):
        for extra, m in (({}, model), ({"adapter": adapter}, changed)):
            for prompt in prompts:
                want = expect(m, prompt, **theirs)
                got = run(directory, {"prompt": prompt, **options, **extra})
                assert got == want + "\n", (prompt, options, extra, got, want)
    assert expect(model, "Hello") != expect(changed, "Hello")
    # Files of prompts, as text and as JSON lines with members of their own.
    with open(f"{tmp}/prompts.txt", "w") as f:
        f.write("\n".join(prompts) + "\n\n")
    with open(f"{tmp}/prompts.jsonl", "w") as f:
        f.writelines(json.dumps({"id": i, "prompt": p}) + "\n" for i, p in enumerate(prompts))
    full = [expect(changed, p) for p in prompts]
    got = run_file(directory, {"prompts": "prompts.txt", "adapter": adapter})
    assert got == [{"prompt": p, "completion": c, "finish_reason": "length"} for p, c in zip(prompts, full)], got
    # As many at once as there are, fewer, or one after another: the same texts, in the prompts' order, also where they end at other times.
    many = [p[:3 + 7 * i % len(p)] for i, p in enumerate(prompts * 5)]
    with open(f"{tmp}/many.txt", "w") as f:
        f.write("\n".join(many) + "\n")
    single = [run(directory, {"prompt": p, "max_new_tokens": 24})[:-1] for p in many[:4]]

    def lengths(stop):
        return {len(c.split(stop)[0]) for c in single}

    # The stop string at which the four texts end at the most different places.
    stop_at = max((c[k:k + 2] for c in single for k in range(2, len(c) - 2)), key=lambda s: len(lengths(s)))
    assert len(lengths(stop_at)) > 1, single
    for options in ({}, {"temperature": 1.5, "repetition_penalty": 1.2}, {"stop": [stop_at, "not there"]}):
        for precision in ("fp32", "bf16"):
            of = {n: run_file(directory, {"prompts": "many.txt", "batch": n, "max_new_tokens": 24, **options}, train={"precision": precision})
                  for n in (1, 4, 100)}
            assert of[1] == of[4] == of[100] and [o["prompt"] for o in of[1]] == many, (options, precision, of)
            if not options and precision == "fp32":
                assert [o["completion"] for o in of[4]][:4] == single, (of[4], single)
            if "stop" in options and precision == "fp32":
                assert [o["completion"] for o in of[1]][:4] == [c.split(stop_at)[0] for c in single], (of[1], single)
    run(directory, {"prompts": "many.txt", "batch": 0}, fails="generate.batch")
    # A stop string of several tokens; the shortest part of the first text that is there once.
    stop = full[0][10:14]
    at = [c.find(stop) for c in full]
    got = run_file(directory, {"prompts": "prompts.jsonl", "adapter": adapter, "stop": [stop, "not there"]})
    assert got == [{"id": i, "prompt": p, "completion": c if a < 0 else c[:a], "finish_reason": "length" if a < 0 else "stop"}
                   for i, (p, c, a) in enumerate(zip(prompts, full, at))], got
    assert run(directory, {"prompt": prompts[0], "adapter": adapter, "stop": stop}) == full[0][:at[0]] + "\n"
    # min_p 1 leaves the likeliest token alone.
    assert run(directory, {"prompt": "Hello", "temperature": 2.0, "min_p": 1}) == expect(model, "Hello") + "\n"
    # Each prompt of a file has a seed of its own.
    with open(f"{tmp}/same.txt", "w") as f:
        f.write("Hello\n" * 2)
    got = [o["completion"] for o in run_file(directory, {"prompts": "same.txt", "temperature": 1.5})]
    assert got[0] != got[1]
    alone = run(directory, {"prompt": "Hello", "temperature": 1.5, "seed": 43})
    assert got[1] + "\n" == alone, (got, alone)
    # Any character may be in a text, also the one that ends a string of C: here all ids are as likely.
    any_id = f"{tmp}/any"
    shutil.copytree(directory, any_id)
    with torch.no_grad():
        changed.lm_head.weight.zero_()
    changed.save_pretrained(any_id)
    with open(f"{tmp}/same.txt", "w") as f:
        f.write("Hello\n" * 60)
    got = [o["completion"] for o in run_file(any_id, {"prompts": "same.txt", "batch": 60, "temperature": 1.0})]
    nul = next(i for i, text in enumerate(got) if "\0" in text[:-1])
    ids = ["?" if c == "\ufffd" else c for c in run(any_id, {"prompt": "Hello", "temperature": 1.0, "seed": 42 + nul})[:-1]]
    assert ["?" if c == "\ufffd" else c for c in got[nul]] == ids, (got[nul], ids)
    # An adapter that does not fit.
    tensors["base_model.model.lm_head.weight"] = value(4, 4)
    save_file(tensors, f"{adapter}/adapter_model.safetensors")
    run(directory, {"prompt": "a", "adapter": adapter}, fails="the base needs [264, 32]")
    run(directory, {"prompt": "a", "prompts": "b"}, fails="leave out one of prompt and prompts")
    run(directory, {"prompts": "nowhere.txt"}, fails="nowhere.txt")
    print("generation: adapters, penalty, prompts and stop strings as transformers")


def experts():
    """Of a mixture of experts a text is the same whatever others are generated with it, to whichever experts their tokens go."""
    directory = f"{tmp}/experts"
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(Qwen3MoeConfig(
        vocab_size=264, hidden_size=32, moe_intermediate_size=24, num_experts=5, num_experts_per_tok=2, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=256, initializer_range=0.2, bos_token_id=None, eos_token_id=None), dtype=torch.float32)
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"{source}/tests/engine/bytes/{name}", directory)
    many = [f"{i} prompts"[: 1 + i % 9] for i in range(20)]
    with open(f"{tmp}/many.txt", "w") as f:
        f.write("\n".join(many) + "\n")
    for precision in ("fp32", "bf16"):
        of = {n: run_file(directory, {"prompts": "many.txt", "batch": n, "max_new_tokens": 24}, train={"precision": precision}) for n in (1, 3, 20)}
        assert of[1] == of[3] == of[20] and len({o["completion"] for o in of[1]}) > 5, (precision, of)
    print("generation: mixtures of experts, one text and many")


def tied():
    """An adapter of the embedding or of the head of a model that ties the two changes one of them."""
    directory = f"{tmp}/tied"
    base, tokenizer = make_model(directory, True)
    weights = load_file(f"{directory}/model.safetensors")
    table = weights["model.embed_tokens.weight"]
    # The same model, stored as its head.
    alone = f"{tmp}/tied-stored-as-head"
    shutil.copytree(directory, alone)
    stored = {k: v for k, v in weights.items() if k != "model.embed_tokens.weight"} | {"lm_head.weight": table.clone()}
    save_file(stored, f"{alone}/model.safetensors", metadata={"format": "pt"})
    untied = f"{tmp}/untied"
    shutil.copytree(directory, untied)
    with open(f"{untied}/config.json") as f:
        config = json.load(f)
    with open(f"{untied}/config.json", "w") as f:
        json.dump(config | {"tie_word_embeddings": False}, f)
    body, head = "base_model.model.model.embed_tokens", "base_model.model.lm_head"
    # PEFT wants a module with an adapter besides those that are saved whole: this one changes nothing.
    query = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"
    nothing = {query.format(i, m): x.clone() for i in range(2) for m, x in (("A", value(4, 32)), ("B", torch.zeros(32, 4)))}
    g = torch.Generator().manual_seed(seed)

    def adapter_of(name):
        """Members of the configuration, tensors, and the embedding and the head with them; other random values each time."""
        a, b, whole = (torch.randn(*shape, generator=g) for shape in ((4, 264), (32, 4), (264, 32)))
        if name == "embedding":
            a, b = a * 0.5, b * 0.5
            return {"target_modules": ["embed_tokens"]}, {f"{body}.lora_embedding_A": a, f"{body}.lora_embedding_B": b}, table + 2.0 * (b @ a).T, table
        if name == "embedding-whole":
            return {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}, nothing | {f"{body}.weight": whole * 0.2}, whole * 0.2, table
        if name == "head":
            c, d = b.T.contiguous() * 0.5, a.T.contiguous() * 0.5
            return {"target_modules": ["lm_head"]}, {f"{head}.lora_A.weight": c, f"{head}.lora_B.weight": d}, table, table + 2.0 * (d @ c)
        return {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, nothing | {f"{head}.weight": whole * 0.2}, table, whole * 0.2

    prompt = "The quick brown fox"
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]

    def tokens(model):
        # dtrain chooses no id that the tokenizer does not have, and ends with the id that ends a text.
        return model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16, pad_token_id=0,
                              eos_token_id=tokenizer.eos_token_id, suppress_tokens=list(range(len(tokenizer), 264)))[0]

    names = ("embedding", "embedding-whole", "head", "head-whole")
    plain = tokens(base)
    for name in names:
        for _ in range(20):
            members, tensors, embedding, output = adapter_of(name)
            save_file(weights | {"model.embed_tokens.weight": embedding.contiguous(), "lm_head.weight": output.clone()}, f"{untied}/model.safetensors",
                      metadata={"format": "pt"})
            want = tokens(AutoModelForCausalLM.from_pretrained(untied))
            # Tied or without the adapter it has to be another text, or the case would show nothing: with some random values, models repeat one token.
            base.get_input_embeddings().weight.data.copy_(output if name.startswith("head") else embedding)
            if not torch.equal(tokens(base), want) and not torch.equal(plain, want):
                break
        else:
            raise AssertionError(f"{name}: of 20 adapters none changes the text")
        adapter = f"{tmp}/tied-{name}"
        os.makedirs(adapter)
        with open(f"{adapter}/adapter_config.json", "w") as f:
            json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, **members}, f)
        save_file(tensors, f"{adapter}/adapter_model.safetensors", metadata={"format": "pt"})
        text = tokenizer.decode(want, skip_special_tokens=True)[len(tokenizer.decode(ids[0], skip_special_tokens=True)):]
        for model in (directory, alone):
            got = run(model, {"prompt": prompt, "adapter": adapter, "max_new_tokens": 16})
            assert got == text + "\n", (name, model, got, text)
        if importlib.util.find_spec("peft"):
            from peft import PeftModel

            theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(directory), adapter)
            assert torch.equal(tokens(theirs), want), name
    print(f"tied models: {len(names)} adapters of the embedding or the head, as transformers")


sampling()
generation()
experts()
tied()
