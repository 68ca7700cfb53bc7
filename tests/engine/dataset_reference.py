#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The encoding rules once more, in Python over Hugging Face's tokenizers, against what dataset_dump prints.

    dataset_reference.py DATASET_DUMP SHARED

SHARED holds data/, tokenizers/ and reference/llamafactory/. Exit status 77 (skipped) where it or the Python
packages are not there.
"""
import bisect
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile

try:
    from tokenizers import Tokenizer
except ImportError:
    print("skipped: the Python package tokenizers is not installed")
    sys.exit(77)

IGNORE = -100
BATCH = 1000


class Tok:
    def __init__(self, directory):
        self.t = Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))
        with open(os.path.join(directory, "tokenizer_config.json")) as f:
            config = json.load(f)
        self.config = config

        def name(key):
            v = config.get(key)
            return v["content"] if isinstance(v, dict) else v
        self.bos = self.t.token_to_id(name("bos_token")) if name("bos_token") else None
        self.eos = self.t.token_to_id(name("eos_token")) if name("eos_token") else None

    def encode(self, text):
        return self.t.encode(text, add_special_tokens=False).ids

    def adds_bos(self):
        if self.config.get("add_bos_token") is not None:
            return self.config["add_bos_token"]
        return self.bos is not None and self.t.encode("a").ids[0] == self.bos


class Template:
    def __init__(self, entry):
        self.e = entry
        efficient = entry.get("efficient_eos", False)
        default = ["{{content}}"] if efficient else ["{{content}}", {"special": "eos_token"}]

        def slots(key, fallback):
            return entry[key]["slots"] if key in entry else fallback
        self.user = slots("format_user", ["{{content}}"])
        self.assistant = slots("format_assistant", default)
        self.system = slots("format_system", ["{{content}}"])
        self.function = slots("format_function", self.assistant)
        self.observation = slots("format_observation", self.user)
        self.prefix = slots("format_prefix", [])
        self.efficient_eos = efficient
        self.reasoning = entry.get("template_class") == "ReasoningTemplate"
        self.merged = entry.get("template_class") == "Llama2Template"
        self.tools = entry.get("format_tools", {}).get("tool_format", "default")

    def eos(self, tok):
        if self.e.get("replace_eos"):
            i = tok.t.token_to_id(self.e["stop_words"][0])
            if i is not None:
                return i
        return tok.eos

    def ids(self, tok, slots, content=""):
        out = []
        for s in slots:
            if isinstance(s, dict):
                i = tok.bos if s.get("special") == "bos_token" else self.eos(tok)
                if "token" in s:
                    i = tok.t.token_to_id(s["token"])
                out += [i] if i is not None else []
            else:
                text = s.replace("{{content}}", content, 1)
                out += tok.encode(text) if text else []
        return out


QWEN_TOOLS = ("\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
              "You are provided with function signatures within <tools></tools> XML tags:\n<tools>%s\n</tools>\n\n"
              "For each function call, return a json object with function name and arguments within "
              "<tool_call></tool_call> XML tags:\n<tool_call>\n"
              '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>')


def tool_text(template, tools):
    tools = json.loads(tools)
    wrapped = [t if t.get("type") == "function" else {"type": "function", "function": t} for t in tools]
    if not tools:
        return ""
    assert template.tools == "qwen", template.tools
    return QWEN_TOOLS % "".join("\n" + json.dumps(t, ensure_ascii=False) for t in wrapped)


def call_text(template, content):
    calls = json.loads(content)
    calls = calls if isinstance(calls, list) else [calls]
    assert template.tools == "qwen"
    return "\n".join("<tool_call>\n%s\n</tool_call>" % json.dumps(
        {"name": c["name"], "arguments": c["arguments"]}, ensure_ascii=False) for c in calls)


def convert(record, columns, tags):
    """-> (turns [(role, content)], system, tools) or None for a broken one."""
    if "messages" in columns:
        turns, system = [], ""
        for i, m in enumerate(record[columns["messages"]]):
            role = {v: k for k, v in tags.items()}.get(m[tags["role"]])
            if role == "system" and i == 0:
                system = m[tags["content"]]
                continue
            turns.append((role, m[tags["content"]]))
        for i, (role, _) in enumerate(turns):
            if role not in (("user", "observation"), ("assistant", "function"))[i % 2]:
                return None
        if len(turns) % 2 or not turns:
            return None
        return turns, system, record.get(columns.get("tools"), "") or ""
    turns = []
    for q, a in record.get(columns.get("history")) or []:
        turns += [("user", q), ("assistant", a)]
    parts = [record[c] for c in (columns["prompt"], columns.get("query")) if c and record.get(c)]
    turns += [("user", "\n".join(parts)), ("assistant", record[columns["response"]])]
    return turns, record.get(columns.get("system")) or "", ""


def infer_seqlen(s, t, budget):
    if t * 2 < budget:
        most = budget
    elif s * 2 < budget:
        most = budget - s
    else:
        most = int(budget * (t / (s + t)))
    t = min(most, t)
    return min(max(budget - t, 0), s), t


def encode(tok, tp, example, cutoff, train_on_prompt=False, mask_history=False, efficient_eos=False):
    turns, system, tools = example
    efficient = efficient_eos or tp.efficient_eos
    assistant = tp.assistant
    if efficient_eos:
        assistant = [s for s in assistant if s != {"special": "eos_token"}]
    system = system or tp.e.get("default_system", "")
    encoded = []
    for i, (role, content) in enumerate(turns):
        ids = []
        if i == 0:
            ids += tp.ids(tok, tp.prefix)
            text = system + (tool_text(tp, tools) if tools else "")
            # A list of no tools is a text that is not empty: with it the system prompt is written, empty or not.
            if (system or tools) and tp.merged:
                content = tp.system[0].replace("{{content}}", text, 1) + content
            elif system or tools:
                ids += tp.ids(tok, tp.system, text)
        if role == "function":
            content = call_text(tp, content)
        if tp.reasoning and i % 2 and "<think>" not in content and "</think>" not in content and \
                (not mask_history or i == len(turns) - 1):
            ids += tok.encode("<think>\n\n</think>\n\n")
        ids += tp.ids(tok, {"user": tp.user, "assistant": assistant, "observation": tp.observation,
                            "function": tp.function}[role], content)
        encoded.append(ids)
    pairs = [(encoded[i], encoded[i + 1]) for i in range(0, len(encoded), 2)]
    if mask_history:
        pairs = pairs[::-1]
    total = 1 if efficient else 0
    ids, labels = [], []
    for n, (s, t) in enumerate(pairs):
        if total >= cutoff:
            break
        ns, nt = infer_seqlen(len(s), len(t), cutoff - total)
        s, t = s[:ns], t[:nt]
        total += ns + nt
        sl = s if train_on_prompt else [IGNORE] * ns
        if efficient and n and ns and not train_on_prompt:
            sl = [tp.eos(tok)] + [IGNORE] * (ns - 1)
        tl = [IGNORE] * nt if mask_history and n else t
        if mask_history:
            ids, labels = s + t + ids, sl + tl + labels
        else:
            ids, labels = ids + s + t, labels + sl + tl
    if efficient:
        ids, labels = ids + [tp.eos(tok)], labels + [tp.eos(tok)]
    return ids, labels


def knapsack(numbers, capacity):
    numbers = sorted(numbers)
    sacks = []
    while numbers:
        sack, room = [], capacity
        while True:
            i = bisect.bisect(numbers, room)
            if i == 0:
                break
            room -= numbers[i - 1]
            sack.append(numbers.pop(i - 1))
        sacks.append(sack)
    return sacks


def row(parts, cross):
    """[(ids, labels)] -> {"ids", "targets", "starts"}"""
    ids, targets, starts = [], [], [0]
    for i, l in parts:
        ids += i
        targets += l[1:] + [IGNORE]
        starts.append(len(ids))
    if cross:
        labels = [x for _, l in parts for x in l]
        return {"ids": ids, "targets": labels[1:] + [IGNORE], "starts": [0, len(ids)]}
    return {"ids": ids, "targets": targets, "starts": starts}


def sft_rows(tok, tp, records, columns, tags, o):
    packing, cross, length = o.get("packing"), o.get("cross_documents"), o["max_length"]
    flags = {k: o.get(k, False) for k in ("train_on_prompt", "mask_history", "efficient_eos")}
    rows = []
    for at in range(0, len(records), BATCH):
        examples = [convert(r, columns, tags) for r in records[at:at + BATCH]]
        done = [encode(tok, tp, e, length - (1 if packing else 0), **flags) for e in examples if e]
        if not packing:
            rows += [row([d], False) for d in done]
            continue
        done = [d for d in done if len(d[0]) <= length - 1]
        by_length = collections.defaultdict(list)
        for d in done:
            by_length[len(d[0])].append(d)
        for sack in knapsack([len(d[0]) for d in done], length - 1):
            rows.append(row([by_length[n].pop() for n in sack], cross))
    return rows


def pretrain_rows(tok, texts, o):
    length, rows = o["max_length"], []
    docs = [tok.encode(t) + [tok.eos] for t in texts]
    if not o.get("packing"):
        if tok.adds_bos():
            docs = [[tok.bos] + d for d in docs]
        return [row([(d[:length], d[:length])], False) for d in docs]
    # LLaMA-Factory drops what a batch of 1000 has left over; here it begins the next one, or makes the last row.
    flat = [(x, i == 0) for d in docs for i, x in enumerate(d)]
    for b in range(0, len(flat), length):
        block, parts = flat[b:b + length], []
        if len(block) == 1:
            break
        for n, (x, first) in enumerate(block):
            if first or n == 0:
                parts.append([])
            parts[-1].append(x)
        if tok.adds_bos():
            parts[0][0] = tok.bos
        rows.append(row([(p, p) for p in parts], o.get("cross_documents")))
    return rows


def dump(program, tokenizer, options):
    args = [program, tokenizer] + ["%s=%s" % (k, str(v).lower() if isinstance(v, bool) else v)
                                   for k, v in options.items()]
    p = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if p.returncode:
        raise SystemExit("%s: %s" % (" ".join(args), p.stderr))
    return [json.loads(line) for line in p.stdout.splitlines() if line.startswith("{")]


def compare(name, got, want):
    for i, (g, w) in enumerate(zip(got, want)):
        for key in ("ids", "targets", "starts"):
            if g[key] != w[key]:
                at = next((n for n, (a, b) in enumerate(zip(g[key], w[key])) if a != b), "the end")
                raise SystemExit("%s: row %d: %s differ at %s\n  here %s\n  want %s" %
                                 (name, i, key, at, g[key][:60], w[key][:60]))
    if len(got) != len(want):
        raise SystemExit("%s: %d rows instead of %d" % (name, len(got), len(want)))
    print("ok %-70s %5d rows %8d tokens" % (name, len(got), sum(len(g["ids"]) for g in got)))


ALPACA = {"prompt": "instruction", "query": "input", "response": "output"}
SHAREGPT = {"messages": "conversations", "tools": "tools"}
TAGS = {"role": "from", "content": "value", "user": "human", "assistant": "gpt", "observation": "observation",
        "function": "function_call", "system": "system"}


def history_file(path, records):
    """alpaca records with the two before them as history: conversations of three turns."""
    out = [{**r, "history": [[p["instruction"], p["output"][:200]] for p in records[max(i - 2, 0):i]],
            "system": "Be brief." if i % 3 == 0 else ""} for i, r in enumerate(records)]
    with open(path, "w") as f:
        for r in out:
            f.write(json.dumps(r, ensure_ascii=len(r["output"]) % 2 == 0) + "\n")
    return out


# Several thoughts in an answer, one in another, and one that does not begin or does not end.
ODD_THOUGHTS = ["<think>\nT\n</think>\n\nA<think>\nU\n</think>\n\nB", "A<think>\nT\n</think>\n\nB<think>\nU\n</think>\n\n",
                "<think>\nT<think>\nU\n</think>\n\nA", "A\n</think>\n\nB<think>\nT\n</think>\n\nC", "<think>\nT\n</think>\n\nA<think>\nU",
                "A\n</think>\n\nB\n</think>\n\nC", "<think></think>A<think>T</think>B", "\n\nA"]


def chat_templates(program, directory, names, tmp):
    """The Jinja source that is saved with a model gives the ids that it was trained with."""
    from transformers import AutoTokenizer
    saved = os.path.join(tmp, "tokenizer")
    shutil.copytree(directory, saved, dirs_exist_ok=True)
    data = os.path.join(tmp, "chats.jsonl")
    chats = [[("user", "What's it?"), ("assistant", "It\\'s 1,\n'2' {{ 3 }}.")],
             [("system", "Be brief."), ("user", "Hallo, du #}"), ("assistant", "Guten Tag"), ("user", "Wie geht's?"),
              ("assistant", "Gut, ß und 日本.")],
             [("system", "S"), ("user", "U"), ("assistant", "A"), ("tool", '{"T": 1}'), ("assistant", "A")],
             [("user", "U"), ("assistant", "W<think>\nT\n</think>\n\nA"), ("user", "V"), ("assistant", "<think>\nT\n</think>\n\nB")],
             [("user", "U"), ("assistant", "<think>\nT\n</think>\n\n\nA"), ("user", "V"), ("assistant", "B")],
             *([("user", "U"), ("assistant", odd), ("user", "V"), ("assistant", odd)] for odd in ODD_THOUGHTS)]
    chats = [[{"role": r, "content": c} for r, c in chat] for chat in chats]
    with open(data, "w") as f:
        for chat in chats:
            f.write(json.dumps({"messages": chat}) + "\n")
    done = 0
    for name in names:
        for flags in ({}, {"system": "Say #} or 'it'."}, {"efficient_eos": True}, {"mask_history": True}):
            o = {"template": name, "max_length": 4000, "path": data, "format": "openai",
                 "chat_template": os.path.join(saved, "chat_template.jinja"), **flags}
            try:
                rows = dump(program, directory, o)
            except SystemExit as e:
                # A template that is not known here, efficient_eos with a template that has it, or a token that the tokenizer does not have.
                if any(x in str(e) for x in ("unknown template", "does not go with", "has no token")):
                    continue
                raise
            if not done:
                tokenizer = AutoTokenizer.from_pretrained(saved)
                assert tokenizer.chat_template.startswith("{#- dtrain: "), tokenizer.chat_template
            with open(o["chat_template"]) as f:
                tokenizer.chat_template = f.read()
            for row, chat in zip(rows, chats, strict=True):
                ids = tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False)
                text, want = (tokenizer.decode(i, clean_up_tokenization_spaces=False) for i in (ids, row["ids"]))
                if text != want:
                    raise SystemExit("%s %s %s: the saved chat template gives\n  %r\n  instead of\n  %r" %
                                     (directory, name, flags, text, want))
                # Only where a turn ends with a space, or an answer begins with line breaks, does a token cross its end, when all text is tokenized at once.
                if ids != row["ids"] and name not in ("breeze", "ernie_nothink") and not chat[-1]["content"].startswith("\n"):
                    raise SystemExit("%s %s %s: other ids by the saved chat template" % (directory, name, flags))
            done += 1
    print("ok %-70s %5d" % (os.path.basename(directory) + " saved chat templates", done))


def main(program, shared):
    templates = os.path.join(shared, "reference/llamafactory/lf_templates.json")
    if not os.path.exists(templates):
        print("skipped: %s is not there" % templates)
        sys.exit(77)
    with open(templates) as f:
        templates = {t["name"]: Template(t) for t in json.load(f)}
    data = os.path.join(shared, "data/sft")
    with open(os.path.join(data, "alpaca_en_demo.json")) as f:
        alpaca = json.load(f)
    with open(os.path.join(data, "glaive_toolcall_en_demo.json")) as f:
        glaive = json.load(f)
    with tempfile.TemporaryDirectory() as tmp:
        for tokenizer, names in (("minimind", [*templates, "olmo2", "tulu"]), ("llama3.2", ["llama3", "qwen3"]),
                                 ("gpt2", ["default", "chatml"])):
            chat_templates(program, os.path.join(shared, "tokenizers", tokenizer), names, tmp)
        history_path = os.path.join(tmp, "history.jsonl")
        history = history_file(history_path, alpaca[:300])
        for tokenizer in ("minimind", "llama3.2", "mistral-7b-v0.1", "gpt2"):
            directory = os.path.join(shared, "tokenizers", tokenizer)
            tok = Tok(directory)
            few = ("llama3", "chatml", "qwen", "mistral", "alpaca", "default")
            for name in few if tokenizer != "minimind" else few + ("qwen3", "phi", "gemma", "deepseek", "zephyr",
                                                                   "vicuna", "falcon", "seed_coder", "llama2"):
                o = {"template": name, "max_length": 300, "max_samples": 400,
                     "path": os.path.join(data, "alpaca_en_demo.json")}
                compare("%s %s" % (tokenizer, name), dump(program, directory, o),
                        sft_rows(tok, templates[name], alpaca[:400], ALPACA, TAGS, o))
            runs = [("chatml", {"packing": True}), ("llama3", {"packing": True, "cross_documents": True}),
                    ("mistral", {"mask_history": True}), ("qwen", {"train_on_prompt": True}),
                    ("default", {"efficient_eos": True}), ("alpaca", {"efficient_eos": True, "packing": True}),
                    ("qwen3", {"mask_history": True}), ("default", {"efficient_eos": True, "mask_history": True}),
                    ("falcon", {"packing": True})]
            for name, flags in runs:
                for length in (200, 700):
                    o = {"template": name, "max_length": length, "path": history_path, **flags}
                    want = sft_rows(tok, templates[name], history, {**ALPACA, "history": "history",
                                                                    "system": "system"}, TAGS, o)
                    compare("%s %s history %d %s" % (tokenizer, name, length, " ".join(flags)),
                            dump(program, directory, o), want)
            o = {"template": "qwen", "max_length": 1024, "dataset_dir": data, "dataset": "glaive_toolcall_en_demo"}
            compare("%s qwen tools" % tokenizer, dump(program, directory, o),
                    sft_rows(tok, templates["qwen"], glaive, SHAREGPT, TAGS, o))
            texts = [json.loads(l)["text"] for l in open(os.path.join(shared, "data/text/c4_demo.jsonl"))]
            with open(os.path.join(shared, "data/text/wiki_demo.txt"), newline="\n") as f:
                wiki = [l.rstrip("\r") for l in f.read().split("\n") if l.strip()]
            for path, docs in (("c4_demo.jsonl", texts), ("wiki_demo.txt", wiki)):
                for flags in ({}, {"packing": True}, {"packing": True, "cross_documents": True}):
                    o = {"task": "pretrain", "max_length": 512, "path": os.path.join(shared, "data/text", path),
                         **flags}
                    compare("%s %s %s" % (tokenizer, path, " ".join(flags)), dump(program, directory, o),
                            pretrain_rows(tok, docs, o))
            lines = os.path.join(tmp, "lines.txt")
            with open(lines, "w") as f:
                f.writelines("line %d\n" % i for i in range(2500))
            o = {"task": "pretrain", "path": lines, "packing": True, "max_length": 777}
            compare("%s 2500 lines packing" % tokenizer, dump(program, directory, o),
                    pretrain_rows(tok, ["line %d" % i for i in range(2500)], o))
            # Longer than the pieces that several threads encode.
            long = os.path.join(tmp, "long.txt")
            with open(long, "w", newline="\n") as f:
                f.write("\n".join(wiki)[:400000].rstrip() + "\n")
            with open(long, newline="\n") as f:
                whole = f.read().rstrip()
            for flags in ({"max_length": 200000}, {"packing": True, "max_length": 512}):
                o = {"task": "pretrain", "format": "files", "path": long, **flags}
                compare("%s a long document %s" % (tokenizer, " ".join(flags)), dump(program, directory, o),
                        pretrain_rows(tok, [whole], o))
    print("all rows agree")


if __name__ == "__main__":
    main(*sys.argv[1:3])
