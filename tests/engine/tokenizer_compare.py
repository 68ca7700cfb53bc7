#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ids and decoded text equal to Hugging Face's tokenizers library: for the tokenizers of ../shared on its texts and on
a megabyte of random Unicode, for every vector there, and for variants made here that use the other parts.
tokenizer_compare.py TOK_DUMP SHARED"""
import copy
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

SKIP = 77
try:
    from tokenizers import Tokenizer
except ImportError:
    print("SKIP: tokenizer_compare: the Python package tokenizers is not there")
    sys.exit(SKIP)

DUMP, SHARED = sys.argv[1], sys.argv[2]
NAMES = ("gpt2", "llama3.2", "minimind", "mistral-7b-v0.1")
failures = 0


def framed(texts):
    return b"".join(b"%d\n%s" % (len(b), b) for b in (t.encode() for t in texts))


def dump(path, mode, data):
    p = subprocess.run([DUMP, path, mode], input=data, capture_output=True)
    if p.returncode:
        raise SystemExit("%s %s: %s" % (path, mode, p.stderr.decode()))
    return p.stdout


def encode(path, texts, special=True):
    out = dump(path, "special" if special else "plain", framed(texts)).decode().split("\n")[:-1]
    return [[int(i) for i in line.split()] for line in out]


def decode(path, lists, skip=False):
    out = dump(path, "skip" if skip else "decode", "".join(" ".join(map(str, l)) + "\n" for l in lists).encode())
    texts, at = [], 0
    while at < len(out):
        end = out.index(b"\n", at)
        n = int(out[at:end])
        texts.append(out[end + 1:end + 1 + n].decode())
        at = end + 1 + n
    return texts


def check(what, ok, detail=""):
    global failures
    if not ok:
        failures += 1
        print("FAIL: %s %s" % (what, detail))


def random_unicode(rng, chars, words=()):
    """Scripts mixed in runs, emoji, combining marks, white space of all sorts, controls, unassigned code points."""
    blocks = [(0x20, 0x7F)] * 6 + [(0xA0, 0x250), (0x300, 0x370), (0x370, 0x400), (0x400, 0x530), (0x590, 0x600),
              (0x600, 0x700), (0x900, 0xA00), (0xE00, 0xE80), (0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2070),
              (0x2070, 0x2200), (0x2460, 0x2600), (0x3000, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xF900, 0xFB00),
              (0xFE00, 0xFF00), (0xFF00, 0xFFF0), (0x1D400, 0x1D800), (0x1F1E6, 0x1F200), (0x1F300, 0x1F6FF),
              (0x20000, 0x20100), (0x1, 0x20), (0x80, 0xA0), (0x0, 0xD800), (0xE000, 0x110000)]
    spaces = " \t\n\r\v\f\x85\xa0\u1680\u2000\u2003\u2009\u200a\u2028\u2029\u202f\u205f\u3000\u180e\u200b\ufeff"
    snippets = ["'s", "'S", "'ll", "'LL", "'\u017f", "'re", "'vE", "'d", "'", " '", "\r\n", "\n\n", "   ", " \n ",
                "\U0001f468\u200d\U0001f469\u200d\U0001f467", "e\u0301", "\u0130", "\ufb01", "\u2581", "<s>", "</s>", "<unk>",
                "<|endoftext|>", "<|im_start|>", "<|eot_id|>", "<0x0A>", "123456789", "\u0661\u0662", "\u00bd", "\u216b"]
    snippets += list(words)
    out = []
    n = 0
    while n < chars:
        k = rng.random()
        if k < 0.25:
            s = "".join(rng.choice(spaces if rng.random() < 0.4 else " \n") for _ in range(rng.randint(1, 5)))
        elif k < 0.4:
            s = rng.choice(snippets)
        else:
            lo, hi = rng.choice(blocks)
            s = "".join(chr(c) for c in (rng.randrange(lo, hi) for _ in range(rng.randint(1, 9))) if not 0xD800 <= c < 0xE000)
        out.append(s)
        n += len(s)
    return "".join(out)


def compare(name, path, texts):
    hf = Tokenizer.from_file(path)
    hf.no_truncation()
    hf.no_padding()
    want = [e.ids for e in hf.encode_batch(texts)]
    got = encode(path, texts)
    check(name, len(got) == len(want), "%d lists for %d" % (len(got), len(want)))
    shown = 0
    for t, w, g in zip(texts, want, got):
        if w != g and shown < 3:
            at = next((i for i, (a, b) in enumerate(zip(w, g)) if a != b), min(len(w), len(g)))
            check(name, False, "ids at %d: %s here, %s there; %r" % (at, g[at:at + 6], w[at:at + 6],
                                                                 hf.decode(w[max(at - 3, 0):at + 6])))
            shown += 1
    for skip in (False, True):
        back = decode(path, want, skip)
        theirs = hf.decode_batch(want, skip_special_tokens=skip)
        for i, (a, b) in enumerate(zip(back, theirs)):
            if a != b:
                check(name, False, "decode(skip=%s) of text %d: %r here, %r there" % (skip, i, a[:80], b[:80]))
                break
    print("%-34s %8d texts %9d bytes %9d ids" % (name, len(texts), sum(len(t.encode()) for t in texts),
                                               sum(map(len, want))))


def clean_up(s):
    for a, b in ((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"),
                 (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")):
        s = s.replace(a, b)
    return s


def vectors():
    """model in the file -> tokenizer at hand, whether its ids have the special tokens"""
    models = {"Xenova/gpt2": ("gpt2", True), "openai-community/gpt2": ("gpt2", True),
              "Xenova/llama3-tokenizer": ("llama3.2", False), "Xenova/llama3-tokenizer-new": ("llama3.2", True)}
    for file in ("gpt2.json", "llama.json"):
        with open(os.path.join(SHARED, "tokenizers/vectors", file)) as f:
            data = json.load(f)
        for model, cases in data.items():
            if model not in models:
                print("vectors of %s: no such tokenizer at hand" % model)
                continue
            name, special = models[model]
            path = os.path.join(SHARED, "tokenizers", name, "tokenizer.json")
            cases = list(cases.items())
            got = encode(path, [c["text"] for _, c in cases], special)
            back = decode(path, [c["ids"] for _, c in cases])
            for (case, c), g, b in zip(cases, got, back):
                check("vectors %s %s" % (model, case), g == c["ids"], "%s, not %s" % (g, c["ids"]))
                # transformers cleaned spaces up after decoding when these were made
                check("vectors %s %s" % (model, case), c["decoded"] in (b, clean_up(b)), "%r, not %r" % (b, c["decoded"]))
            print("vectors %-26s %8d" % (model, len(cases)))


def variants():
    """Tokenizers made of those at hand with other parts, for what the four do not use."""
    def load(name):
        with open(os.path.join(SHARED, "tokenizers", name, "tokenizer.json")) as f:
            return json.load(f)

    mini, spm = load("minimind"), load("mistral-7b-v0.1")

    def pre(*parts):
        return {"type": "Sequence", "pretokenizers": list(parts)}

    def split(pattern, behavior, invert=False):
        return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}

    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    qwen = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    o200k = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
             r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
             r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    deepseek = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
                r"\s*[\r\n]+|\s+(?!\S)|\s+")
    made = {}

    def add(name, base, **parts):
        t = copy.deepcopy(base)
        for k, v in parts.items():
            if k == "added":
                vocab = t["model"]["vocab"]
                n = len(vocab) + sum(a["content"] not in vocab for a in t["added_tokens"])
                for a in v:
                    new = a["content"] not in vocab
                    t["added_tokens"].append({"id": n if new else vocab[a["content"]], "single_word": False, "lstrip": False,
                                              "rstrip": False, "normalized": False, "special": False, **a})
                    n += new
            elif k == "model":
                t["model"].update(v)
            else:
                t[k] = v
        made[name] = t

    add("qwen2 regex + NFC", mini, normalizer={"type": "NFC"}, pre_tokenizer=pre(split({"Regex": qwen}, "Isolated"), level))
    add("o200k regex", mini, pre_tokenizer=pre(split({"Regex": o200k}, "Isolated"), level))
    add("deepseek regexes", mini, pre_tokenizer=pre(split({"Regex": r"\p{N}{1,3}"}, "Isolated"),
        split({"Regex": "[一-龥぀-ゟ゠-ヿ]+"}, "Isolated"), split({"Regex": deepseek}, "Isolated"), level))
    add("prefix space", mini, pre_tokenizer={**level, "add_prefix_space": True, "use_regex": True})
    for b in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for inv in (False, True):
            add("split %s%s" % (b, " inverted" if inv else ""), mini,
                pre_tokenizer=pre(split({"Regex": r"\s|\d"}, b, inv), split({"String": "e"}, b), level))
    add("words", mini, pre_tokenizer=pre(split({"Regex": r"\w+|[^\w\s]+"}, "Isolated"), level))
    add("word boundaries", mini, pre_tokenizer=pre(split({"Regex": r"\p{N}{1,3}(?=(?:\p{N}{3})*\b)|[a-z]\B"}, "Isolated"), level))
    add("whitespace", mini, pre_tokenizer=pre({"type": "Whitespace"}, level))
    add("whitespace split, digits", mini, pre_tokenizer=pre({"type": "WhitespaceSplit"},
        {"type": "Digits", "individual_digits": True}, level))
    add("digits, punctuation", mini, pre_tokenizer=pre({"type": "Digits", "individual_digits": False},
        {"type": "Punctuation", "behavior": "MergedWithPrevious"}, level))
    add("bert", mini, pre_tokenizer=pre({"type": "BertPreTokenizer"}, level))
    add("lower, strip, replace", mini, normalizer={"type": "Sequence", "normalizers": [
        {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Lowercase"},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "~"},
        {"type": "Replace", "pattern": {"String": "th"}, "content": "z"}]})
    add("bytelevel normalizer", mini, normalizer={"type": "ByteLevel"}, pre_tokenizer=None)
    add("no pre-tokenizer", mini, pre_tokenizer=None, normalizer=None)
    add("added tokens", mini, normalizer={"type": "Lowercase"}, added=[
        {"content": "hello", "single_word": True}, {"content": "<L>", "lstrip": True}, {"content": "<R>", "rstrip": True},
        {"content": "<B>", "lstrip": True, "rstrip": True}, {"content": "the", "normalized": True},
        {"content": "there", "normalized": True, "single_word": True}, {"content": "  "}, {"content": "    "},
        {"content": "Über", "normalized": True}, {"content": "é", "lstrip": True}])
    add("llama-2 legacy", spm, normalizer={"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        pre_tokenizer=None)
    meta = {"type": "Metaspace", "replacement": "▁"}
    for scheme in ("always", "first", "never"):
        for sp in (True, False):
            add("metaspace %s %s" % (scheme, sp), spm, decoder={**meta, "prepend_scheme": scheme, "split": sp},
                pre_tokenizer={**meta, "prepend_scheme": scheme, "split": sp},
                added=[{"content": "<X>"}, {"content": "zz", "normalized": True, "single_word": True}])
    add("metaspace legacy", spm, pre_tokenizer={**meta, "add_prefix_space": True})
    add("no byte fallback, fused", spm, model={"byte_fallback": False})
    add("no byte fallback, unfused", spm, model={"byte_fallback": False, "fuse_unk": False})
    add("unfused, ignore merges", spm, model={"fuse_unk": False, "ignore_merges": True})
    for form in ("NFD", "NFKC", "NFKD"):
        add(form, mini, normalizer={"type": "Sequence", "normalizers": [{"type": form}] +
                                    ([{"type": "StripAccents"}] if form == "NFD" else [])})
    return made


def training(text):
    """What is trained here is, token by token, what the library trains, and transformers loads it."""
    from tokenizers import decoders, models, pre_tokenizers, trainers

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    hf = Tokenizer(models.BPE())
    hf.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    hf.decoder = decoders.ByteLevel()
    hf.train_from_iterator([text], trainers.BpeTrainer(vocab_size=6400, min_frequency=2, special_tokens=special,
                           show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    with tempfile.TemporaryDirectory() as d:
        p = subprocess.run([DUMP, d, "train", "6400"], input=framed([text]), capture_output=True)
        check("training", p.returncode == 0, p.stderr.decode())
        with open(os.path.join(d, "tokenizer.json")) as f:
            ours = json.load(f)
        theirs = json.loads(hf.to_str())
        check("trained vocabulary", ours["model"]["vocab"] == theirs["model"]["vocab"])
        check("trained merges", ours["model"]["merges"] == [list(m) for m in theirs["model"]["merges"]])
        texts = [text[:200000], "<|im_start|>user\nhé 𝄞<|im_end|>\n"]
        compare("trained here", os.path.join(d, "tokenizer.json"), texts)
        try:
            from transformers import AutoTokenizer
        except ImportError:
            print("SKIP: loading with transformers: it is not there")
            return
        auto = AutoTokenizer.from_pretrained(d)
        check("AutoTokenizer", [auto(t, add_special_tokens=False)["input_ids"] for t in texts] == encode(d, texts, False))
        check("AutoTokenizer", (auto.bos_token_id, auto.eos_token_id, auto.pad_token_id) == (1, 2, 0))
        check("AutoTokenizer", auto.chat_template == "{{ messages }}")
        check("AutoTokenizer", len(auto) == 6400, str(len(auto)))
        print("transformers loads it as %s" % type(auto).__name__)


def main():
    if not os.path.isdir(os.path.join(SHARED, "tokenizers")):
        print("SKIP: tokenizer_compare: %s/tokenizers is not there" % SHARED)
        return SKIP
    rng = random.Random(20240607)
    texts = []
    for f in sorted(os.listdir(os.path.join(SHARED, "data/text"))):
        with open(os.path.join(SHARED, "data/text", f), newline="") as h:
            whole = h.read()
        parts = whole.split("\n\n")
        texts.append((f, [whole] + (parts if len(parts) > 1 else [])))
    lines = [random_unicode(rng, rng.choice((3, 10, 60, 400))) for _ in range(3000)]
    noise = lines + [random_unicode(rng, 340000)]
    vectors()
    for name in NAMES:
        path = os.path.join(SHARED, "tokenizers", name, "tokenizer.json")
        for f, t in texts:
            compare(name + " " + f, path, t)
        compare(name + " random Unicode", path, noise)
    # The library normalizes by tables of Unicode 9; what is younger than 3.2 is left out where a form is involved.
    old = unicodedata.ucd_3_2_0
    young = [random_unicode(rng, rng.choice((3, 10, 60, 300)), ("hello", " hello ", "the", "There", "<L>", " <L> ", " <R> ",
             "<B>", "ÜBER", "  é", "<X>", "zz", " zz ", "azz")) for _ in range(1500)]
    old = ["".join(c for c in s if old.category(c) not in ("Cn", "Co")) for s in young]
    with tempfile.TemporaryDirectory() as d:
        for name, t in variants().items():
            path = os.path.join(d, "tokenizer.json")
            with open(path, "w") as f:
                json.dump(t, f)
            compare(name, path, (old if t["normalizer"] else young) + texts[1][1][1:200])
    training(texts[1][1][0])
    print("%d failures" % failures if failures else "all equal")
    return 1 if failures else 0


sys.exit(main())
