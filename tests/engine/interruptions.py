# SPDX-License-Identifier: Apache-2.0
"""Random runs of real workers that are killed or stopped and go on, beside the same runs left alone.

interruptions.py WORKER SOURCE DIE_AT.SO        SEED=N CASES=N FROM=N: the cases FROM to FROM + CASES - 1 of SEED; KEEP=1 keeps the files of those that fail

Case N of SEED draws the task, the options, one to four ranks and one to four interruptions. An interruption is SIGKILL or SIGTERM, for one rank or
for all, either before the Nth call that changes a file of the run (die_at.c; a write is cut in half) or after a random part of the time that the
undisturbed run took. Then the run goes on with the same options, or with other ranks, strategies and memory but the same batch, or with another batch.

What has to hold at the end, beside the undisturbed run:
- with the same options: every file that both leave has the same bytes: weights, optimizer state, trainer_state.json; and metrics.jsonl the same lines
  but for measurements; with other ranks losses and weights are within the rounding of the precision, and steps, tokens, epochs and rates are equal;
- with another batch: as many rows and tokens in all;
- the directories have the same files, but for the checkpoints that a stopped run saves;
- metrics.jsonl and TensorBoard's events have each step once;
- an attempt goes on from the newest checkpoint that an earlier one has reported, without a warning;
- where DTRAIN_TEST_PYTHON has transformers (LOAD=1), the final model is loaded, and gives the same logits.
"""
import array
import json
import math
import os
import random
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

WORKER, SOURCE, DIE_AT = sys.argv[1:4]
SEED = int(os.environ.get("SEED", "1"))
CASES = int(os.environ.get("CASES", "4"))
FROM = int(os.environ.get("FROM", "0"))
LOAD = os.environ.get("LOAD") == "1"
DEADLINE = 120.0  # of an attempt, in seconds; one takes less than one
MEASURED = re.compile(r',"(tokens_per_second|eta_seconds|time|[a-z]*_seconds|[a-z_]*memory_bytes|slowest_[a-z]*)":[^,}]*')
WORDS = "one two three red green blue river stone cloud bird house light small green long quick slow old new and or but then".split()


class Failure(Exception):
    pass


def check(holds, text):
    if not holds:
        raise Failure(text)


# ---- drawing ----

def weighted(rng, choices):
    """A key of `choices`, each as often as its value says."""
    return rng.choices(list(choices), list(choices.values()))[0]


def sentence(rng, least, most):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(least, most)))


def write_data(rng, path, task, rows):
    """About as many rows; those of pretraining have 32 tokens, which are bytes."""
    if task == "pretrain":
        with open(path, "w") as f:
            size = 0
            while size < 32 * rows:
                line = sentence(rng, 1, 14)
                size += len(line) + 1
                f.write(line + "\n")
        return
    records = []
    for i in range(rows):
        record = {"instruction": sentence(rng, 2, 5)}
        if task == "sft":
            record["output"] = sentence(rng, 1, 6)
        elif task == "kto":
            record.update(completion=sentence(rng, 1, 6), label=i % 2 == 0)
            record["prompt"] = record.pop("instruction")
        else:
            record.update(chosen=sentence(rng, 1, 6), rejected=sentence(rng, 1, 6))
        records.append(record)
    with open(path, "w") as f:
        json.dump(records, f)


def draw_tuning(rng, config):
    kind = weighted(rng, {"full": 5, "freeze": 1, "lora": 1, "dora": 1, "rslora": 1, "pissa": 1, "qlora": 1.5})
    if kind == "full":
        return kind
    if kind == "freeze":
        config["train"]["freeze_trainable_layers"] = rng.choice([1, -1, 2])
        if rng.random() < 0.5:
            config["train"]["freeze_trainable_modules"] = rng.choice(["mlp", "self_attn", "down_proj"])
        if rng.random() < 0.5:
            config["train"]["freeze_extra_modules"] = "norm"
        return kind
    lora = config["lora"] = {"rank": rng.choice([1, 2, 4])}
    if kind in ("dora", "rslora"):
        lora[kind] = True
    if kind == "pissa":
        lora["init"] = "pissa"
    if kind == "qlora":
        lora["quantize"] = rng.choice(["nf4", "nf4_double"])
        if rng.random() < 0.3:
            lora["dora"] = True
    if rng.random() < 0.4:
        lora["target"] = rng.choice([["q_proj", "v_proj"], ["down_proj"], ["all"]])
    if rng.random() < 0.2 and config["task"] != "reward":
        lora["modules_to_save"] = rng.choice([["embed_tokens"], ["norm"], ["q_proj"] if lora.get("target") == ["down_proj"] else ["norm"]])
    if rng.random() < 0.2:
        lora["dropout"] = 0.3
    if rng.random() < 0.2:
        lora["plus_ratio"] = 3
    return kind


def draw_precision(rng, config, kind, move):
    train = config["train"]
    precision = train["precision"] = weighted(rng, {"fp32": 5, "bf16": 2.5, "fp16": 2.5, "fp8": 0.7})
    # In fp8 the scales are those of a whole micro-batch.
    if precision == "fp8" and (kind == "qlora" or move == "ranks"):
        precision = train["precision"] = "bf16"
    if precision == "fp16":
        train.update(loss_scale_power=rng.choice([8, 16, 24, 30]), loss_scale_window=rng.choice([2, 3, 1000]), hysteresis=rng.choice([1, 2]))
        train["consecutive_hysteresis"] = rng.random() < 0.3
    if precision == "bf16" and rng.random() < 0.25:
        train["master"] = "none"


def draw_parallel(rng, config, world):
    """What may be another one in the next attempt."""
    strategy = rng.choice(["ddp", "zero1", "zero2", "zero3", "zero3", "hybrid"]) if world > 1 else "ddp"
    parallel = config["parallel"] = {"strategy": strategy, "timeout": 30}
    if strategy == "hybrid":
        parallel["shard_degree"] = rng.choice([d for d in (1, 2, 3, 4) if world % d == 0])
    if strategy in ("zero3", "hybrid"):
        parallel["prefetch"] = rng.choice([0, 1, 2, 3])
        parallel["persist_below"] = rng.choice([0, 0, 500, 2500])
    if config["train"]["optimizer"] in ("adamw", "sgd", "lion") and rng.random() < 0.35:
        parallel["offload"] = rng.choice(["optimizer", "all"]) if strategy in ("zero3", "hybrid") or world == 1 else "optimizer"
        if rng.random() < 0.5:
            parallel["offload_dir"] = "OFFLOAD"
    config["train"]["recompute"] = rng.choice(["none", "none", "selective", "full"])
    if world > 1 and config["reduce"]:
        parallel["reduce_type"] = "bf16"


def draw_nodes(rng, world):
    """The node of each rank, as many on each; None: one directory for all."""
    if world == 1 or rng.random() < 0.75:
        return None
    each = rng.choice([n for n in (1, 2) if world % n == 0 and n < world])
    return order_nodes(rng, world // each, each)


def order_nodes(rng, count, each):
    return [node for node in rng.sample(range(count), count) for _ in range(each)]


def splits(batch, world):
    return [(m, batch // world // m) for m in (1, 2, 3, 4) if batch % (world * m) == 0]


class Case:
    def __init__(self, number, directory):
        rng = self.rng = random.Random(f"{SEED}/{number}")
        self.number, self.dir = number, directory
        self.world = weighted(rng, {1: 3, 2: 4, 3: 1.5, 4: 1.5})
        task = weighted(rng, {"pretrain": 5, "sft": 4, "dpo": 2, "orpo": 1, "simpo": 0.5, "kto": 1, "reward": 1})
        optimizer = weighted(rng, {"adamw": 5, "sgd": 2, "lion": 1, "lamb": 0.7, "lars": 0.5, "adafactor": 0.8, "muon": 0.8, "adamw_8bit": 1, "lion_8bit": 0.5})
        self.move = weighted(rng, {"same": 7, "ranks": 3, "batch": 1})
        self.batch = rng.choice([6, 12] if self.world < 4 else [12]) if self.move == "ranks" else self.world * rng.choice([1, 2, 3, 4])
        # Ranks that share their sequences.
        degree = 2 if self.world % 2 == 0 and self.move == "same" and rng.random() < 0.25 else 1
        micro, accumulation = rng.choice(splits(self.batch, self.world // degree))
        rows = rng.randint(4 * self.batch, 8 * self.batch) if self.batch < 6 else rng.randint(2 * self.batch + 1, 4 * self.batch)
        self.config = c = {
            "task": task, "directory": directory,
            "data": {"path": [f"{directory}/data.{'txt' if task == 'pretrain' else 'json'}"], "max_length": 32 if task == "pretrain" else 128},
            "train": {"optimizer": optimizer, "micro_batch": micro, "accumulation": accumulation,
                      "learning_rate": {"sgd": 0.05, "lars": 1.0, "lion": 3e-4, "lion_8bit": 3e-4}.get(optimizer, 3e-3),
                      "schedule": rng.choice(["linear", "cosine", "constant", "wsd"]), "clip": rng.choice([0, 1.0, 0.1]),
                      "weight_decay": 0, "seed": rng.randrange(1000), "shuffle": rng.random() < 0.8, "eval_steps": rng.choice([0, 0, 1, 2, 3])},
            "output": {"log_steps": rng.choice([1, 1, 1, 2, 3]), "save_steps": rng.choice([0, 1, 2, 2, 3, 5]), "keep": rng.choice([0, 0, 1, 2, 3]),
                       "background": rng.random() < 0.7, "tensorboard": rng.random() < 0.5},
        }
        if rng.random() < 0.3:
            c["train"]["warmup_steps"] = rng.randint(1, 4)
        write_data(rng, c["data"]["path"][0], task, rows)
        if task == "pretrain":
            c["data"]["format"] = "text"
        else:
            c["data"]["template"] = "default"
        if task == "sft":
            c["data"]["packing"] = rng.random() < 0.5
        if rng.random() < 0.6:
            c["data"]["eval_fraction"] = rng.choice([2, 3, 5])
        if rng.random() < 0.5:
            c["data"]["cache_dir"] = f"{directory}/cache"
        if rng.random() < 0.4:
            c["train"]["max_steps"] = rng.randint(3, 14)
        else:
            c["train"]["epochs"] = rng.choice([1, 1.5, 2, 2.3])
        if optimizer in ("sgd", "lars", "muon") and rng.random() < 0.3:
            c["train"]["nesterov"] = True
        kind = self.kind = draw_tuning(rng, c)
        if rng.random() < 0.3 and (kind != "pissa" or optimizer == "adamw"):
            c["train"]["weight_decay"] = 0.1
        draw_precision(rng, c, kind, self.move)
        if c["train"]["precision"] == "bf16" and accumulation == 1 and "lora" not in c and optimizer in ("adamw", "adamw_8bit") and self.move == "same" \
                and rng.random() < 0.5:
            c["train"]["gradient_type"] = "bf16"
        if "lora" in c or rng.random() < 0.3:
            c["model"] = {"path": f"{BASES}/{rng.choice(['tied', 'untied'])}"}
            if rng.random() < 0.3:
                c["model"]["load"] = "broadcast"
            if c["model"]["path"].endswith("/tied") and c.get("lora", {}).get("modules_to_save") == ["embed_tokens"]:
                del c["lora"]["modules_to_save"]
        else:
            c["model"] = {"init": f"{BASES}/{rng.choice(['tied', 'untied', 'wide'])}.init"}
            if c["model"]["init"].endswith("wide.init"):
                c["output"]["max_shard_mb"] = 1
        if task in ("dpo", "kto") and rng.random() < 0.3 and "wide" not in str(c["model"]):
            c["preference"] = {"reference": f"{BASES}/{os.path.basename(list(c['model'].values())[0]).split('.')[0]}"}
        c["reduce"] = rng.random() < 0.15
        if self.move == "ranks" and "lora" in c:
            c["lora"].pop("dropout", None)
        draw_parallel(rng, c, self.world)
        if degree > 1:
            c["parallel"]["sequence_degree"] = degree
        if "gradient_type" in c["train"]:
            for key in ("offload", "offload_dir"):
                c["parallel"].pop(key, None)
        self.nodes = draw_nodes(rng, self.world)
        if self.nodes and rng.random() < 0.35:
            c["output"]["gather"] = True
        # As the service starts it (the number of the attempt), or as a user does, again and again.
        self.served = rng.random() < 0.6
        self.knows = rng.random() < 0.5
        if self.served and rng.random() < 0.2:
            c["output"]["resume"] = "never"
        if task in ("pretrain", "sft"):
            c["train"].update(rng.choice([{}, {}, {}, {"loss": "dft"}, {"label_smoothing": 0.1}]))
            # The noise is that of a micro-batch.
            if self.move != "ranks" and rng.random() < 0.2:
                c["train"]["neftune_alpha"] = 5
        self.before = weighted(rng, {None: 8, "model": 1, "adapter": 1})  # what an earlier run has left
        if self.before:
            c["output"]["overwrite"] = True
        self.interruptions = rng.randint(1, 4)

    def splits(self, world):
        """(micro_batch, accumulation) with the same batch. The loss of kto depends on the rows of a micro-step."""
        train = self.config["train"]
        rows = self.world * train["micro_batch"]
        return [s for s in splits(self.batch, world) if self.config["task"] != "kto" or s[0] * world == rows]

    def describe(self):
        c = self.config
        o = {**c["train"], **c["output"], **c["parallel"], **c["data"], **c["model"], **c.get("lora", {})}
        o.pop("path", None)
        return (f"{c['task']} {self.kind} {self.world} ranks, nodes {self.nodes}, {self.move}, {'service' if self.served else 'user'}, before {self.before}, "
                + " ".join(f"{k}={str(v).replace(BASES + '/', '').replace(self.dir + '/', '')}" for k, v in o.items()))


# ---- attempts ----

class Run:
    """The directories of a run, and its attempts."""

    def __init__(self, case, name):
        self.case, self.dir = case, f"{case.dir}/{name}"
        self.attempts, self.known, self.known_node, self.logs = 0, 0, None, []
        self.stops, self.resumed, self.log = set(), [], ""
        self.began_again, self.unmarked = 0, set()
        os.makedirs(self.dir)
        for node in range(max(case.nodes) + 1 if case.nodes else 1):
            if case.before:
                shutil.copytree(f"{BASES}/before-{case.before}", self.output(node))

    def output(self, node):
        return f"{self.dir}/out-{node}" if self.case.nodes else f"{self.dir}/out"

    def start(self, config, world, nodes, die=None, count=False):
        """die: (rank or None for all, call, signal)."""
        self.attempts += 1
        meet = f"{self.case.dir}/meet-{os.path.basename(self.dir)}-{self.attempts}"
        os.mkdir(meet)
        os.makedirs(f"{self.dir}/offload", exist_ok=True)
        processes = []
        if self.known and self.attempts % 3 == 0:
            config = {**config, "output": {**config["output"], "resume": "must"}}
        for rank in range(world):
            node = nodes[rank] if nodes else 0
            own = json.loads(json.dumps(config).replace('"OFFLOAD"', json.dumps(f"{self.dir}/offload")))
            own["output"]["dir"] = self.output(node)
            own.pop("reduce", None)
            own["resources"] = {"devices_per_node": world}
            with open(f"{meet}/config-{rank}.json", "w") as f:
                json.dump(own, f)
            peers = [r for r in range(world) if not nodes or nodes[r] == node]
            env = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "RANK": str(rank), "WORLD_SIZE": str(world),
                   "LOCAL_RANK": str(peers.index(rank)), "LOCAL_WORLD_SIZE": str(len(peers)), "DTRAIN_NODE": f"n{node}", "DTRAIN_RENDEZVOUS_DIR": meet,
                   "DTRAIN_CONFIG": f"{meet}/config-{rank}.json", "DTRAIN_ATTEMPT": str(self.attempts if self.case.served else 1)}
            if self.case.served:
                env["DTRAIN_RUN_ID"] = "7"
                if self.case.knows and self.known:
                    env.update(DTRAIN_CHECKPOINT=str(self.known), DTRAIN_CHECKPOINT_NODE=f"n{self.known_node}")
            if count or die:
                env.update(LD_PRELOAD=DIE_AT, DIE_BELOW=self.dir)
            if count:
                env["DIE_COUNT"] = f"{meet}/count-{rank}"
            if die and die[0] in (None, rank):
                env.update(DIE_AT=str(die[1]), DIE_SIGNAL=str(int(die[2])))
            with open(f"{meet}/log-{rank}", "w") as log:
                processes.append(subprocess.Popen([WORKER], env=env, stdout=log, stderr=subprocess.STDOUT))
        self.meet, self.rank0_node = meet, nodes[0] if nodes else 0
        return processes

    def end(self, processes):
        """After the end of all ranks: what has to hold after any attempt."""
        statuses = [p.wait() for p in processes]
        self.logs = []
        for rank in range(len(processes)):
            with open(f"{self.meet}/log-{rank}", errors="replace") as f:
                self.logs.append(f.read())
        self.log = self.logs[0]
        before = self.known
        resumed = re.search(r"^resuming from \S*/checkpoint-(\d+)$", self.log, re.M)
        if resumed:
            check(int(resumed[1]) >= before, f"goes on from step {resumed[1]}, after step {before} was saved\n{self.log}")
            self.resumed.append(int(resumed[1]))
        elif "ready in" in self.log:
            check(before == 0, f"begins again, after step {before} was saved\n{self.log}")
            self.began_again += self.attempts > 1
        for log in self.logs:
            for line in log.splitlines():
                bad = re.match(r"warning: .*(older checkpoint|checkpoint before it|other order|computed again)", line)
                check(not bad or ("computed again" in line and self.case.nodes), f"{line}\n{log}")
        for step in re.findall(r"^saved \S*/checkpoint-(\d+) in", self.log, re.M):
            self.known, self.known_node = max(self.known, int(step)), self.rank0_node
        for step in self.checkpoints():
            if step not in self.marks():
                self.unmarked.add(step)
        stopped = re.search(r"^stopped by \S+ after step (\d+)$", self.log, re.M)
        if stopped:
            self.stops.add(int(stopped[1]))
        return statuses

    def checkpoints(self):
        """The steps of those that rank 0 has published."""
        names = os.listdir(self.output(self.rank0_node)) if os.path.isdir(self.output(self.rank0_node)) else []
        return {int(m[1]) for m in (re.fullmatch(r"checkpoint-(\d+)", name) for name in names) if m}

    def began(self):
        """The times at which attempts began, in the order of the nodes and then of the lines."""
        for node in range(max(self.case.nodes) + 1 if self.case.nodes else 1):
            path = f"{self.output(node)}/metrics.jsonl"
            for line in read(path).splitlines() if os.path.exists(path) else []:
                if line.startswith(('{"event":"start"', '{"event":"resume"')):
                    yield json.loads(line)["time"]

    def marks(self):
        path = f"{self.output(self.rank0_node)}/metrics.jsonl"
        text = read(path) if os.path.exists(path) else ""
        return {int(step) for step in re.findall(r'^{"event":"checkpoint","step":(\d+),', text, re.M)}

    def undisturbed(self, config, world, nodes, count=False):
        began = time.monotonic()
        processes = self.start(config, world, nodes, count=count)
        wait_all(processes, DEADLINE)
        statuses = self.end(processes)
        self.seconds = time.monotonic() - began
        if count:
            self.counts = []
            for rank in range(world):
                try:
                    with open(f"{self.meet}/count-{rank}") as f:
                        self.counts.append(int(f.read()))
                except OSError:
                    self.counts.append(0)
        return statuses


def wait_all(processes, seconds):
    """Until all have ended; those that have not by then are killed, which is a failure."""
    end = time.monotonic() + seconds
    for p in processes:
        try:
            p.wait(max(0.01, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            for q in processes:
                q.kill()
            for q in processes:
                q.wait()
            raise Failure(f"ranks that have not ended after {seconds:.0f} s: {[q.args for q in processes]}") from None


def wait_any(processes, seconds):
    """Until one has ended, or for so many seconds. Whether one has."""
    if any(p.poll() is not None for p in processes):
        return True
    ends = [os.pidfd_open(p.pid) for p in processes]
    try:
        return bool(select.select(ends, [], [], seconds)[0])
    finally:
        for end in ends:
            os.close(end)


def signal_all(processes, number):
    for p in processes:
        if p.poll() is None:
            p.send_signal(number)


def interrupt(run, config, world, nodes, rng, plain):
    """One attempt that is interrupted. Returns whether it ended by itself."""
    number = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
    victim = rng.randrange(world) if rng.random() < 0.6 else None
    then = rng.choice(["kill", "kill", "kill", "term", "alone"])
    by_call, part, pause = rng.random() < 0.7, rng.random(), rng.random()
    share = rng.random()
    die = None
    if by_call:
        # What is left of a run that goes on has fewer calls.
        most = plain.counts[victim % len(plain.counts)] if victim is not None else max(plain.counts)
        left = 1 - run.known / max(1, int(re.findall(r"(\d+) steps?, \d+ an epoch", plain.log)[0]))
        die = (victim, 1 + int(part * max(most, 1) * max(left, 0.15)), number)
    what = f"{signal.Signals(number).name} for {'all ranks' if victim is None else f'rank {victim}'} of {world} " \
           f"{f'before call {die[1]}' if die else f'after {part * plain.seconds:.3f} s'}, then {then}"
    processes = run.start(config, world, nodes, die=die)
    try:
        if not by_call:
            wait_any(processes, part * plain.seconds)
            signal_all(processes if victim is None else [processes[victim]], number)
        if number == signal.SIGKILL:
            wait_any(processes, DEADLINE)
            failed = any(p.poll() for p in processes)
            if failed and then == "kill":
                signal_all(processes, signal.SIGKILL)
            elif failed and then == "term":
                signal_all(processes, signal.SIGTERM)
                wait_any([p for p in processes if p.poll() is None], 0.5 * pause)
                signal_all(processes, signal.SIGKILL)
        elif share < 0.3:
            # Of a node that gives them little time.
            wait_any(processes, (plain.seconds if by_call else 0) + 0.3 * pause * plain.seconds)
            signal_all(processes, signal.SIGKILL)
        elif wait_any(processes, DEADLINE) and any(s in (143, -signal.SIGTERM) for s in (p.poll() for p in processes)):
            # A rank that is stopped before its first step leaves the others to whoever has started them.
            if not any("ready in" in read(f"{run.meet}/log-{rank}") for rank in range(world)):
                signal_all(processes, signal.SIGTERM)
        wait_all(processes, DEADLINE)
        killed = any(p.returncode == -signal.SIGKILL for p in processes)
        statuses = run.end(processes)
        what += f": {statuses}" + (f", from {run.resumed[-1]}" if "resuming from" in run.log else "")
        early = any("stopped before the first step" in log for log in run.logs) or -signal.SIGTERM in statuses
        if "stopped by" in run.log and not killed:
            what += f", stopped after {max(run.stops)}"
            check(all(s == 143 for s in statuses), f"{what}: stopped, but statuses {statuses}")
            check(run.known in run.stops, f"{what}: stopped after step {run.stops}, but saved was {run.known}")
        elif number == signal.SIGTERM and not killed and not early:
            check(all(s == 0 for s in statuses), f"{what}: statuses {statuses}")
    except Failure as e:
        raise Failure(f"{what}: {e}") from None
    return all(s == 0 for s in statuses), what


def read(path):
    with open(path, errors="replace") as f:
        return f.read()


# ---- comparisons ----

def files_of(directory):
    found = {}
    for root, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(root, name)
            found[os.path.relpath(path, directory)] = path
    return found


def tensors(path):
    """Name -> (type, shape, bytes) of a safetensors file."""
    with open(path, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(size)), f.read()
    return {n: (t["dtype"], t["shape"], data[t["data_offsets"][0]:t["data_offsets"][1]]) for n, t in header.items() if n != "__metadata__"}


def values(kind, data):
    if kind == "F32":
        return array.array("f", data)
    if kind == "BF16":
        wide = array.array("I", (x << 16 for x in array.array("H", data)))
        return array.array("f", wide.tobytes())
    if kind == "F16":
        return struct.unpack(f"<{len(data) // 2}e", data)
    return array.array("B", data)


def model_of(directory):
    found = {}
    for name, path in files_of(directory).items():
        if "/" not in name and name.endswith(".safetensors"):
            found.update(tensors(path))
    return found


def is_measurement(name):
    return name.startswith("metrics.jsonl") or name.startswith("runs/") or name == ".dtrain"


def lines_of(path):
    with open(path) as f:
        text = f.read()
    check(text.endswith("\n") or not text, f"{path}: the last line has no end")
    return [json.loads(MEASURED.sub("", line)) for line in text.splitlines()]


def reports(run, nodes):
    """The reports of metrics.jsonl. Where rank 0 was on several nodes, each has a part."""
    attempts, began = [], iter(run.began())
    for node in range(max(run.case.nodes) + 1 if run.case.nodes else 1):
        path = f"{run.output(node)}/metrics.jsonl"
        if not os.path.exists(path):
            continue
        for line in lines_of(path):
            if line.get("event") in ("start", "resume"):
                attempts.append((next(began), line["step"], []))
            elif "loss" in line or "event" not in line:
                check(attempts, f"{path} begins with {line}")
                attempts[-1][2].append(line)
    if not run.case.nodes:
        merged = [line for _, _, lines in attempts for line in lines]
        for a, b in zip(merged, merged[1:]):
            check(a["step"] < b["step"], f"metrics.jsonl has step {b['step']} after {a['step']}")
        return merged
    by_step = {}
    for _, step, lines in sorted(attempts, key=lambda a: a[0]):
        by_step = {k: v for k, v in by_step.items() if k <= step}
        by_step.update({line["step"]: line for line in lines})
    return [by_step[k] for k in sorted(by_step)]


def compare_marks(run, plain):
    marks = [line for line in lines_of(f"{run.output(0)}/metrics.jsonl") if "event" in line]
    want = {m["step"] for m in lines_of(f"{plain.output(0)}/metrics.jsonl") if m.get("event") == "checkpoint"}
    saved = [m["step"] for m in marks if m["event"] == "checkpoint"]
    check(len(saved) == len(set(saved)), f"marks of checkpoints {saved}")
    # A run may have been killed between a checkpoint and its mark.
    missing = want - set(saved) - run.unmarked
    check(not missing, f"no mark of the checkpoints {sorted(missing)}; {saved}, went on from {run.resumed}")
    check(marks[-1]["event"] == "model", f"the last mark is {marks[-1]}")
    last = 0
    for m in marks:
        if m["event"] in ("start", "resume"):
            check(m["step"] >= last, f"the mark {m} after one of step {last}")
            last = m["step"]


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        elif key & 7 == 1:
            value, at = data[at:at + 8], at + 8
        elif key & 7 == 5:
            value, at = data[at:at + 4], at + 4
        else:
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        yield key >> 3, value


def scalars(directory):
    """What TensorBoard shows: (tag, step) -> value. A start of a session removes what an earlier one has from its step on."""
    events = []
    for name in os.listdir(directory):
        with open(f"{directory}/{name}", "rb") as f:
            data = f.read()
        at = 0
        while at + 12 <= len(data):
            size, = struct.unpack_from("<Q", data, at)
            if at + 16 + size > len(data):
                break  # was being written when the run was killed
            event = list(fields(data[at + 12:at + 12 + size]))
            when = struct.unpack("<d", dict(event)[1])[0]
            events.append((when, len(events), event))
            at += 16 + size
    found = {}
    for _, _, event in sorted(events):
        d = dict(event)
        step = d.get(2, 0)
        if 7 in d:
            found = {k: v for k, v in found.items() if k[1] < step}
        if 5 in d:
            for _, value in fields(d[5]):
                v = dict(fields(value))
                if 2 in v:
                    tag = v[1].decode()
                    check((tag, step) not in found, f"TensorBoard has {tag} of step {step} twice")
                    found[tag, step] = struct.unpack("<f", v[2])[0]
    return {k: v for k, v in found.items() if not k[0].startswith("perf/")}


def tolerance(config):
    optimizer, precision = config["train"]["optimizer"], config["train"]["precision"]
    if precision == "fp8" or optimizer.endswith("8bit"):
        return 0.1
    if precision != "fp32" or config["reduce"]:
        return 0.05
    return {"adamw": 1e-6, "sgd": 1e-6}.get(optimizer, 1e-3)


def compare_reports(case, run, plain, same):
    ours, theirs = reports(run, case.nodes), reports(plain, case.nodes)
    check([r["step"] for r in ours] == [r["step"] for r in theirs], f"metrics.jsonl has the steps {[r['step'] for r in ours]}, not {[r['step'] for r in theirs]}")
    limit = tolerance(case.config)
    for a, b in zip(ours, theirs):
        if same:
            check(a == b, f"step {a['step']}: {a}\nnot {b}")
            continue
        for key in ("steps", "epoch", "tokens", "learning_rate"):
            if not (key == "learning_rate" and case.config["train"]["precision"] == "fp16"):
                check(a[key] == b[key] or (key != "tokens" and math.isclose(a[key], b[key], rel_tol=1e-9)), f"step {a['step']}: {key} {a[key]}, not {b[key]}")
        for key in ("loss", "eval_loss"):
            if b.get(key) is not None:
                check(a.get(key) is not None and abs(a[key] - b[key]) <= limit * max(1, abs(b[key])), f"step {a['step']}: {key} {a.get(key)}, not {b[key]}")


def compare_models(case, run, plain, node):
    a, b = model_of(run.output(node)), model_of(plain.output(case.nodes[0] if case.nodes else 0))
    check(set(a) == set(b) and a, f"tensors {sorted(set(a) ^ set(b))}")
    limit = tolerance(case.config)
    for name in a:
        check(a[name][:2] == b[name][:2], f"{name}: {a[name][:2]}, not {b[name][:2]}")
        x, y = values(a[name][0], a[name][2]), values(b[name][0], b[name][2])
        far = max((abs(p - q) for p, q in zip(x, y)), default=0)
        size = max((abs(q) for q in y), default=0)
        # A gradient that is almost zero moves a weight by its sign, which is rounding: by a part of a learning rate.
        free = 2 * limit if limit > 1e-6 else 2e-4
        check(far <= free * max(1, size), f"{name}: {far} apart, of {size}")


def compare_files(case, run, plain, node):
    """With the same options on the same nodes: the same files with the same bytes."""
    output = case.config["output"]
    ours, theirs = files_of(run.output(node)), files_of(plain.output(node))
    # Moments in 8 bits that no step has changed are -0, and 0 when they have been read.
    zeros = case.config["train"]["optimizer"].endswith("8bit") and case.config["train"]["precision"] == "fp16"
    for name in sorted(set(ours) | set(theirs)):
        if is_measurement(name):
            continue
        step = re.match(r"checkpoint-(\d+)/", name)
        if step and (name not in theirs or name not in ours) and (run.stops or run.began_again):
            kept = {int(m[1]) for m in (re.match(r"checkpoint-(\d+)/", n) for n in theirs) if m}
            if name in theirs:
                check(output["keep"] and run.stops, f"{name} is missing")
            else:
                check(int(step[1]) in run.stops or (output["keep"] and int(step[1]) < max(kept, default=0)), f"{name} is left over")
            continue
        check(name in theirs, f"{name} is left over")
        check(name in ours, f"{name} is missing")
        a, b = open(ours[name], "rb").read(), open(theirs[name], "rb").read()
        if a == b or (zeros and re.search(r"/(index|rank-\d+-of-\d+)\.json$", name)):
            continue
        if zeros and re.search(r"/rank-\d+-of-\d+\.safetensors$", name):
            a, b = tensors(ours[name]), tensors(theirs[name])
            check(set(a) == set(b) and all(list(values(*a[t][::2])) == list(values(*b[t][::2])) for t in a), f"{name} differs")
            continue
        raise Failure(f"{name} differs")
    check(not set(os.listdir(f"{run.dir}/offload")), f"left in the directory of offloaded state: {os.listdir(f'{run.dir}/offload')}")


def check_leftovers(case, run, plain):
    """Whatever has changed: no names of files that an undisturbed run does not leave."""
    def shape(name):
        name = re.sub(r"^checkpoint-\d+/", "checkpoint-N/", name)
        name = re.sub(r"^runs/.*", "runs/", name)
        return re.sub(r"rank-\d+-of-\d+", "rank-R-of-W", name)
    nodes = range(max(case.nodes) + 1 if case.nodes else 1)
    theirs = {shape(n) for node in nodes for n in files_of(plain.output(node))}
    shapes = theirs | {n.replace("metrics.jsonl", f"metrics.jsonl.{i}") for n in theirs for i in range(1, 9) if n == "metrics.jsonl" and run.began_again}
    checkpoint = {n for n in files_of(plain.dir) if "checkpoint-" in n}
    for node in nodes:
        for name in files_of(run.output(node)):
            if shape(name) in shapes or (not checkpoint and run.stops and shape(name).startswith("checkpoint-N/")):
                continue
            raise Failure(f"{os.path.basename(run.output(node))}/{name} is left over")
    left = set(os.listdir(run.dir)) - {"offload"} - {os.path.basename(run.output(node)) for node in nodes}
    check(not left, f"left over: {left}")
    cache = f"{case.dir}/cache"
    if os.path.isdir(cache):
        check(not [n for n in os.listdir(cache) if "tmp" in n], f"left in the cache: {os.listdir(cache)}")


def compare_batch(case, run, plain):
    """With another batch: after the same rows."""
    def last(r):
        found = [p for n, p in files_of(r.dir).items() if n.endswith("dtrain/state.json")]
        return max((json.loads(read(p)) for p in found), key=lambda s: s["examples"]) if found else None
    a, b = last(run), last(plain)
    if a and b:
        check(a["examples"] == b["examples"] and a["tokens"] == b["tokens"],
              f"after {a['examples']} rows and {a['tokens']} tokens, not {b['examples']} and {b['tokens']}")
    ours, theirs = reports(run, case.nodes)[-1], reports(plain, case.nodes)[-1]
    check(ours["tokens"] == theirs["tokens"] and ours["step"] == ours["steps"], f"ends with {ours}, not {theirs}")


def load(case, run, plain, node):
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
    make = AutoModelForSequenceClassification if case.config["task"] == "reward" else AutoModelForCausalLM
    logits = []
    for directory in run.output(node), plain.output(case.nodes[0] if case.nodes else 0):
        if "lora" in case.config:
            from peft import PeftModel
            base = make.from_pretrained(case.config["model"]["path"], dtype=torch.float32, **({"num_labels": 1} if make is AutoModelForSequenceClassification else {}))
            model = PeftModel.from_pretrained(base, directory)
        else:
            model = make.from_pretrained(directory, dtype=torch.float32)
        with torch.no_grad():
            logits.append(model.eval()(torch.tensor([[5, 9, 40, 77, 12]])).logits)
    limit = 0 if case.move == "same" else 1e-4 if tolerance(case.config) <= 1e-6 else 1
    check((logits[0] - logits[1]).abs().max() <= limit, f"transformers: logits {(logits[0] - logits[1]).abs().max()} apart")


# ---- a case ----

def next_options(case, rng):
    """Of the next attempt: (config, ranks, nodes)."""
    config = json.loads(json.dumps(case.config))
    world, nodes = case.world, case.nodes
    if case.move == "same":
        return config, world, nodes
    worlds = [w for w in (1, 2, 3, 4) if case.splits(w)] if case.move == "ranks" else [1, 2, 3]
    # Each node that has a part of a checkpoint is needed.
    world = rng.choice([w for w in worlds if not nodes or w % (max(nodes) + 1) == 0] or [world])
    if case.move == "ranks":
        config["train"]["micro_batch"], config["train"]["accumulation"] = rng.choice(case.splits(world))
    else:
        config["train"]["micro_batch"], config["train"]["accumulation"] = rng.choice([1, 2, 3]), rng.choice([1, 2])
    draw_parallel(rng, config, world)
    if nodes:
        # Where rank 0 has gathered a checkpoint, its node alone has it.
        nodes = order_nodes(rng, max(nodes) + 1, world // (max(nodes) + 1))
        if config["output"].get("gather"):
            nodes.sort(key=lambda n: n != case.nodes[0])
    return config, world, nodes


def has_model_alone(case, run, nodes):
    """Whether the directory has files of the final model and no checkpoint: another run is refused there."""
    names = os.listdir(run.output(nodes[0] if nodes else 0)) if os.path.isdir(run.output(nodes[0] if nodes else 0)) else []
    return not case.served and not case.config["output"].get("overwrite") and not run.checkpoints() and \
        any(n.endswith((".json", ".jinja", ".safetensors")) for n in names)


def run_case(case):
    rng = case.rng
    plain = Run(case, "plain")
    statuses = plain.undisturbed(case.config, case.world, case.nodes, count=True)
    if any(statuses):
        check("ready in" not in plain.log and not any("stopped" in log or s < 0 for log, s in zip(plain.logs, statuses)), f"undisturbed: {statuses}\n{plain.log}")
        return "refused: " + (re.findall(r"^error: (.*)", plain.log, re.M) or ["?"])[0][:200], []
    if case.move == "batch" and ("max_steps" in case.config["train"] or case.config["train"]["epochs"] % 1 or case.nodes):
        case.move = "same"
    run = Run(case, "run")
    told, config, world, nodes = [], case.config, case.world, case.nodes
    try:
        for i in range(case.interruptions):
            if i and case.move != "same":
                config, world, nodes = next_options(case, rng)
            ended, what = interrupt(run, config, world, nodes, rng, plain)
            told.append(what)
            if has_model_alone(case, run, nodes):
                break
            check("error: output.dir" not in run.log, run.log)
        if not has_model_alone(case, run, nodes):
            if case.move != "same":
                config, world, nodes = next_options(case, rng)
            statuses = run.undisturbed(config, world, nodes)
            check(not any(statuses), f"the last attempt: {statuses}\n" + "\n".join(run.logs))
        elif not ended:
            return "good: a part of the model and no checkpoint, which another run does not touch", told
        node = nodes[0] if nodes else 0
        if case.move == "batch":
            compare_batch(case, run, plain)
            check_leftovers(case, run, plain)
            return "", told
        compare_reports(case, run, plain, case.move == "same")
        check_leftovers(case, run, plain)
        if case.move == "same":
            for n in set(nodes or [0]):
                compare_files(case, run, plain, n)
        else:
            compare_models(case, run, plain, node)
        if not case.nodes:
            compare_marks(run, plain)
            if case.config["output"]["tensorboard"] and case.move == "same":
                a, b = scalars(f"{run.output(0)}/runs"), scalars(f"{plain.output(0)}/runs")
                for key in set(a) | set(b):
                    check(a.get(key) == b.get(key) or (a.get(key) != a.get(key) and b.get(key) != b.get(key)), f"TensorBoard: {key}: {a.get(key)}, not {b.get(key)}")
        if LOAD:
            load(case, run, plain, node)
    except Failure as e:
        raise Failure("\n".join(f"  {line}" for line in told) + f"\n{e}") from None
    return "", told


def make_bases(directory):
    """Models of two kinds, to start from, and a larger one, whose files have several shards; and what earlier runs leave."""
    with open(f"{SOURCE}/tests/engine/bytes/config.json") as f:
        config = json.load(f)
    config.update(hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.05, pad_token_id=0)
    for name, more in (("tied", {}), ("untied", {"tie_word_embeddings": False, "model_type": "llama"}),
                       ("wide", {"tie_word_embeddings": False, "vocab_size": 6144, "hidden_size": 64, "num_hidden_layers": 3})):
        os.makedirs(f"{directory}/{name}.init")
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(f"{SOURCE}/tests/engine/bytes/{file}", f"{directory}/{name}.init")
        with open(f"{directory}/{name}.init/config.json", "w") as f:
            json.dump({**config, **more}, f)
    with open(f"{directory}/data.txt", "w") as f:
        f.write("a few words\n" * 20)

    def train(name, **groups):
        run = {"task": "pretrain", "directory": directory, "data": {"path": [f"{directory}/data.txt"], "format": "text", "max_length": 32, "cache_dir": f"{directory}/cache"},
               "train": {"max_steps": 1, "precision": "fp32"}, "output": {"dir": f"{directory}/{name}", "tensorboard": False}, **groups}
        run["output"].update(groups.get("more", {}))
        run.pop("more", None)
        with open(f"{directory}/run.json", "w") as f:
            json.dump(run, f)
        subprocess.run([WORKER], env={"PATH": os.environ["PATH"], "DTRAIN_CONFIG": f"{directory}/run.json"}, check=True, stdout=subprocess.DEVNULL)
    train("tied", model={"init": f"{directory}/tied.init"})
    train("untied", model={"init": f"{directory}/untied.init"})
    train("before-model", model={"init": f"{directory}/wide.init"}, more={"max_shard_mb": 1, "save_steps": 1})
    train("before-adapter", model={"path": f"{directory}/tied"}, lora={"rank": 2})
    # A run goes on from checkpoints that it finds, and keeps measurements.
    shutil.rmtree(f"{directory}/before-model/checkpoint-1")
    for name in "before-model", "before-adapter":
        os.remove(f"{directory}/{name}/metrics.jsonl")


BASES = tempfile.mkdtemp(prefix="dtrain-interruptions-")


def main():
    failed = refused = attempts = 0
    shown = os.environ.get("VERBOSE") == "1"
    print(f"SEED={SEED}", flush=True)
    try:
        make_bases(BASES)
        for number in range(FROM, FROM + CASES):
            directory = f"{BASES}/case-{number}"
            os.mkdir(directory)
            case = Case(number, directory)
            try:
                outcome, told = run_case(case)
                attempts += len(told)
                refused += outcome.startswith("refused")
                if shown:
                    print(f"case {number}: {case.describe()}\n" + "".join(f"  {t}\n" for t in told) + f"  {outcome or 'good'}", flush=True)
            except Failure as e:
                failed += 1
                print(f"FAILED: SEED={SEED} FROM={number} CASES=1: {case.describe()}\n{e}", flush=True)
                if os.environ.get("KEEP"):
                    kept = tempfile.mkdtemp(prefix=f"dtrain-interruptions-case-{number}-")
                    shutil.copytree(directory, f"{kept}/case")
                    print(f"its files: {kept}/case")
            shutil.rmtree(directory)
    finally:
        shutil.rmtree(BASES, ignore_errors=True)
    print(f"{CASES} cases, {attempts} attempts interrupted, {refused} refused, {failed} failed")
    # Options that do not go together are few of them.
    sys.exit(failed > 0 or refused > (CASES + 1) / 2)


main()
