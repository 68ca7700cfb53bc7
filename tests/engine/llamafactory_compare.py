#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rows of random conversations against those that LLaMA-Factory itself makes of the same files.

    llamafactory_compare.py DATASET_DUMP SHARED [SEED]

Its converters, templates and processors run as installed; nothing is written again here but the reading of the
files. Templates whose stop words the tokenizer lacks are left out: LLaMA-Factory adds tokens there. Known to
differ, and left out: the words of tool format "default" (dtrain-run(5)), llama3's date, arguments of calls given
as text, and the "detailed thinking off" that LLaMA-Factory's openai converter adds. Exit status 77 (skipped) where
the package or SHARED is not there.
"""
import copy
import json
import os
import random
import subprocess
import sys
import tempfile
import types

try:
    from transformers import AutoTokenizer
    import peft  # noqa: F401  before the empty module, which it would take for the real one
    try:
        import torchaudio  # noqa: F401  of use for sound alone
    except ImportError:
        sys.modules["torchaudio"] = types.ModuleType("torchaudio")
    from llamafactory.data import template as lf_template
    from llamafactory.data import tool_utils as lf_tools
    from llamafactory.data.converter import DATASET_CONVERTERS
    from llamafactory.data.parser import DatasetAttr
    from llamafactory.data.processor import PackedSupervisedDatasetProcessor, SupervisedDatasetProcessor
except ImportError as e:
    print("skipped: LLaMA-Factory is not installed: %s" % e)
    sys.exit(77)

from dataset_reference import row  # targets are shifted, none crosses the end of a document

TAGS = {"sharegpt": ("from", "value", "human", "gpt", "observation", "function_call", "system"),
        "openai": ("role", "content", "user", "assistant", "tool", "function", "system")}
WORDS = ("the", "Ünïcode", "a\nb", "<|im_end|>", "1234", " two  spaces ", "日本", "x=\"y\"", "\\", "{{content}}x", "</s>", "é")
BIG = (9223372036854775807, 9223372036854775808, -9223372036854775808, -9223372036854775809, 10**40, -10**19, 0)


def text(r, least=0):
    return " ".join(r.choice(WORDS) for _ in range(r.randint(least, 12)))


def value(r, depth=0):
    """A JSON value: with what Python and others write differently."""
    kind = r.randint(0, 7 if depth < 3 else 4)
    if kind == 0:
        return r.choice(BIG)
    if kind == 1:
        return r.choice((0.1, 1e22, 1e-5, -0.0, 123456.789, 5e-324, 1.7976931348623157e308, 2.5))
    if kind == 2:
        return r.choice((True, False, None))
    if kind <= 4:
        return r.choice((text(r), "\0", "\0" + "123", "\0\0" + "99999999999999999999", "\x7f", "/\b\f"))
    if kind == 5:
        return [value(r, depth + 1) for _ in range(r.randint(0, 3))]
    return {r.choice(("a", "b", "ü", "c d")): value(r, depth + 1) for _ in range(r.randint(0, 3))}


def tool(r, i):
    t = {"name": "f%d" % i, "description": text(r), "parameters": {"type": "object", "properties": {"p": value(r)}}}
    return {"type": "function", "function": t} if r.random() < 0.3 else t


def tools(r, can):
    """As text: absent, null, empty, a list of none, of some."""
    if can and r.random() < 0.5:
        return json.dumps([tool(r, i) for i in range(r.randint(1, 3))], ensure_ascii=r.random() < 0.5,
                          indent=r.choice((None, 2)))
    return r.choice((None, "", "[]", "{}", " [ ] "))


def thought(r, words, chance):
    """Between the template's words, where it has any."""
    return words[0] + text(r) + words[1] if words and r.random() < chance else ""


def call(r, reasoning):
    calls = [{"name": "f%d" % i, "arguments": {"a": value(r), "b": value(r)}} for i in range(r.randint(1, 2))]
    content = json.dumps(calls if len(calls) > 1 or r.random() < 0.5 else calls[0], ensure_ascii=r.random() < 0.5)
    return thought(r, reasoning, 0.3) + content


def answer(r, reasoning):
    return r.choice(("", "", "\n")) + "".join(thought(r, reasoning, 0.4) + text(r) for _ in range(r.choice((1, 1, 2))))


def alpaca(r, can, reasoning):
    out = {"instruction": text(r, 1), "input": text(r), "output": answer(r, reasoning), "system": text(r),
           "history": [[text(r, 1), answer(r, reasoning)] for _ in range(r.randint(0, 2))]}
    for key in ("input", "system", "history", "instruction", "output"):
        if r.random() < 0.1:
            out[key] = None
        elif r.random() < 0.1:
            del out[key]
    out["id"] = r.choice(BIG)
    return out


def chat(r, can, reasoning, formatting):
    role, content, user, assistant, observation, function, system = TAGS[formatting]
    turns = []
    if r.random() < 0.4:
        turns.append({role: system, content: text(r)})
    for _ in range(r.randint(1, 4)):
        turns.append({role: r.choice((user, user, observation)), content: text(r)})
        if r.random() < 0.3 and formatting == "openai":
            turns.append({role: assistant, content: None, "tool_calls": [
                {"type": "function", "function": f} for f in [{"name": "f", "arguments": {"a": value(r)}}]]})
        elif r.random() < 0.3:
            turns.append({role: function, content: call(r, reasoning)})
        else:
            turns.append({role: assistant, content: answer(r, reasoning)})
    if r.random() < 0.05:
        turns.pop()
    out = {"messages" if formatting == "openai" else "conversations": turns, "tools": tools(r, can), "id": r.choice(BIG)}
    if r.random() < 0.5:
        out["system"] = r.choice((text(r), None))
    if out["tools"] is None and r.random() < 0.5:
        del out["tools"]
    return out


def attributes(formatting):
    a = DatasetAttr("file", "x", formatting=formatting)
    a.system, a.tools = "system", None if formatting == "alpaca" else "tools"
    a.history = "history" if formatting == "alpaca" else None
    if formatting == "openai":
        a.messages = "messages"
        (a.role_tag, a.content_tag, a.user_tag, a.assistant_tag, a.observation_tag, a.function_tag,
         a.system_tag) = TAGS["openai"]
    return a


def converted(records, formatting):
    attr = attributes(formatting)
    converter = DATASET_CONVERTERS[formatting](attr, None)
    columns = {k for r in records for k in r}
    out = {k: [] for k in ("_prompt", "_response", "_system", "_tools", "_images", "_videos", "_audios")}
    for record in records:
        record = {c: record.get(c) for c in columns}  # as datasets fills it up
        done = converter(record)
        if formatting == "openai":
            first = record["messages"][0]
            done["_system"] = first["content"] if first["role"] == "system" else record.get("system")
        for k in out:
            out[k].append(done[k])
    return out


def reference(tok, template, records, formatting, o):
    args = types.SimpleNamespace(cutoff_len=o["max_length"] - (1 if o.get("packing") else 0), neat_packing=True,
                                 train_on_prompt=o.get("train_on_prompt", False), mask_history=o.get("mask_history", False))
    cls = PackedSupervisedDatasetProcessor if o.get("packing") else SupervisedDatasetProcessor
    done = cls(template=template, tokenizer=tok, processor=None, data_args=args).preprocess_dataset(
        converted(records, formatting))
    rows = []
    for ids, labels, mask in zip(done["input_ids"], done["labels"], done["attention_mask"]):
        parts = []
        for i, l, m in zip(ids, labels, mask):
            if m and m > len(parts):
                parts.append(([], []))
            if m:
                parts[-1][0].append(i)
                parts[-1][1].append(l)
        rows.append(row(parts, False))
    return [x for x in rows if x["ids"]]


def dump(program, tokenizer, options):
    args = [program, tokenizer] + ["%s=%s" % (k, str(v).lower() if isinstance(v, bool) else v) for k, v in options.items()]
    p = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return p.returncode, [json.loads(l) for l in p.stdout.splitlines() if l.startswith("{")], p.stderr


def compare(what, tok, got, want, records, errors):
    for i, (g, w) in enumerate(zip(got, want)):
        for key in ("ids", "targets", "starts"):
            if g[key] != w[key]:
                print("%s: row %d: %s differ\n  here %r\n  want %r" %
                      (what, i, key, tok.decode(g["ids"]), tok.decode(w["ids"])))
                if len(records) == len(got) == len(want):
                    print("  of   %s" % json.dumps(records[i], ensure_ascii=False))
                sys.exit(1)
    if len(got) != len(want):
        print("%s: %d rows instead of %d\n%s" % (what, len(got), len(want), errors))
        sys.exit(1)


def known_templates(program, tokenizer, path):
    words = dump(program, tokenizer, {"template": "?", "path": path})[2]
    return [w for w in words.split("known are: ")[1].strip().split(", ") if w in lf_template.TEMPLATES]


def prepared(name, fresh):
    """The template and a tokenizer as LLaMA-Factory sets it up for it; None where it would add tokens."""
    tok, t = copy.deepcopy(fresh), copy.deepcopy(lf_template.TEMPLATES[name])
    size = len(tok)
    t.fix_special_tokens(tok)
    for f in (t.format_prefix, t.format_system, t.format_user, t.format_assistant, t.format_observation):
        for slot in f.slots:
            if isinstance(slot, dict) and slot["token"] not in tok.get_vocab():
                return None, None
    return (t, tok) if len(tok) == size else (None, None)


def main(program, shared, seed="1"):
    lf_tools.datetime = types.SimpleNamespace(now=lambda: types.SimpleNamespace(strftime=lambda f: "26 Jul 2024"))
    lf_template.logger = types.SimpleNamespace(warning_rank0=lambda *a: None, info_rank0=lambda *a: None)
    for module in ("converter", "processor.supervised"):
        sys.modules["llamafactory.data." + module].logger = lf_template.logger
    r = random.Random(int(seed))
    total = compared = 0
    used = set()
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "rows.jsonl")
        for tokenizer in ("minimind", "llama3.2", "mistral-7b-v0.1"):
            directory = os.path.join(shared, "tokenizers", tokenizer)
            if not os.path.exists(directory):
                print("skipped: %s is not there" % directory)
                sys.exit(77)
            fresh = AutoTokenizer.from_pretrained(directory)
            with open(path, "w") as f:
                f.write("{}\n")
            for name in known_templates(program, directory, path):
                t = lf_template.TEMPLATES[name]
                can = t.format_tools.tool_format in ("qwen", "llama3", "mistral")
                if tokenizer != "minimind" and not can:
                    continue
                t, tok = prepared(name, fresh)
                if not t:
                    continue
                reasoning = t.thought_words if isinstance(t, lf_template.ReasoningTemplate) else None
                for formatting in ("alpaca", "sharegpt", "openai"):
                    records = [alpaca(r, can, reasoning) if formatting == "alpaca" else chat(r, can, reasoning, formatting)
                               for _ in range(30)]
                    with open(path, "w") as f:
                        f.writelines(json.dumps(x, ensure_ascii=r.random() < 0.5) + "\n" for x in records)
                    flags = r.choice(({}, {"packing": True}, {"mask_history": True}, {"train_on_prompt": True}))
                    if flags.get("train_on_prompt") and t.efficient_eos:
                        flags = {}
                    o = {"template": name, "max_length": r.choice((60, 400, 2000)), "path": path, "format": formatting,
                         **flags}
                    want = reference(tok, t, records, formatting, o)
                    code, got, errors = dump(program, directory, o)
                    if code:
                        print("%s %s: %s" % (tokenizer, o, errors))
                        sys.exit(1)
                    compare("%s %s %s" % (tokenizer, formatting, o), tok, got, want, records, errors)
                    total += len(got)
                compared += 1
                used.add(name)
    print("all %d rows agree with LLaMA-Factory's: %d templates, %d pairs of template and tokenizer" %
          (total, len(used), compared))
    if compared < 20:
        print("too few templates could be compared")
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
