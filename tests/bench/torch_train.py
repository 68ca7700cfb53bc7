# SPDX-License-Identifier: Apache-2.0
"""The PyTorch side of tests/bench/run: one training step of the same small Llama, as PyTorch does it best.

    python torch_train.py [--precision fp32|bf16] [--compile] [--threads N] [--steps N]
    python torch_train.py --world-size 2 --threads 1 …      two processes, DDP over Gloo

25.8M parameters: 512 wide, 8 layers, 8 heads, 2 key/value heads, intermediate 1408, vocabulary 6400, tied; 4 x 512
tokens a step and process; AdamW, clipping at 1.0. Prints one line of JSON: tokens_per_second (all ranks, median
step), peak_rss_mib (the largest rank's), first_step_s (from launch to the end of the first step), loss.
"""
import time

LAUNCHED = time.time()

import argparse, json, os, resource, socket, statistics, subprocess, sys

parser = argparse.ArgumentParser()
parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--world-size", type=int, default=1)
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--warm", type=int, default=2)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--length", type=int, default=512)
options = parser.parse_args()

TUNED_MALLOC = {
    # Without these settings glibc returns the memory of activations to the kernel at every step.
    "MALLOC_TOP_PAD_": "536870912",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
}


def launch():
    """Starts the ranks with torchrun's environment, by hand: torchrun itself takes seconds more."""
    environment = dict(os.environ, **TUNED_MALLOC, OMP_NUM_THREADS=str(options.threads), BENCH_LAUNCHED=str(LAUNCHED))
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        environment.pop(name, None)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ranks = []
    for rank in range(options.world_size):
        mine = dict(environment, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(options.world_size),
                    LOCAL_WORLD_SIZE=str(options.world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        ranks.append(subprocess.Popen([sys.executable] + sys.argv, env=mine, stdout=subprocess.PIPE, text=True))
    outputs = [r.communicate()[0] for r in ranks]
    if any(r.returncode for r in ranks):
        sys.exit("a rank failed")
    results = [json.loads(o.strip().splitlines()[-1]) for o in outputs]
    total = dict(results[0])
    total["tokens_per_second"] = round(sum(r["tokens_per_second"] for r in results), 1)
    total["peak_rss_mib"] = max(r["peak_rss_mib"] for r in results)
    total["first_step_s"] = max(r["first_step_s"] for r in results)
    print(json.dumps(total))


if "RANK" not in os.environ:
    launch()
    sys.exit()
LAUNCHED = float(os.environ.get("BENCH_LAUNCHED", LAUNCHED))

import torch
import torch.nn as nn
import torch.nn.functional as F

WIDTH, LAYERS, HEADS, KV_HEADS, HIDDEN, VOCABULARY = 512, 8, 8, 2, 1408, 6400
HEAD = WIDTH // HEADS


def rope_tables(length, base=1e6):
    frequencies = base ** (-torch.arange(0, HEAD, 2).float() / HEAD)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    half = HEAD // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.k = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.v = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.o = nn.Linear(HEADS * HEAD, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = self.q(x).view(b, t, HEADS, HEAD).transpose(1, 2)
        k = self.k(x).view(b, t, KV_HEADS, HEAD).transpose(1, 2)
        v = self.v(x).view(b, t, KV_HEADS, HEAD).transpose(1, 2)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(b, t, HEADS * HEAD))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
        self.attention = Attention()
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
        cos, sin = rope_tables(options.length)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, x, y):
        h = self.embedding(x)
        for block in self.blocks:
            h = block(h, self.cos, self.sin)
        logits = self.head(self.norm(h))
        return F.cross_entropy(logits.float().view(-1, VOCABULARY), y.reshape(-1))


world_size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
torch.set_num_threads(options.threads)
if world_size > 1:
    import torch.distributed as dist

    dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
parameters = list(model.parameters())
step_model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True) if world_size > 1 else model
if options.compile:
    step_model = torch.compile(step_model)
torch.manual_seed(rank + 1)
times, processor = [], []
for step in range(options.warm + options.steps):
    tokens = torch.randint(0, VOCABULARY, (options.batch, options.length + 1))
    begun, used = time.time(), time.process_time()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.precision == "bf16"):
        loss = step_model(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    value = loss.item()
    ended = time.time()
    if step == 0:
        first = ended - LAUNCHED
    if step >= options.warm:
        times.append(ended - begun)
        processor.append(time.process_time() - used)
print(json.dumps({
    "torch": torch.__version__,
    "mode": "compiled" if options.compile else "eager",
    "precision": options.precision,
    "processes": world_size,
    "threads": options.threads,
    "tokens_per_second": round(options.batch * options.length / statistics.median(times), 1),
    "best_tokens_per_second": round(options.batch * options.length / min(times), 1),
    # With one thread, CPU time shows the speed without the load of other programs.
    "tokens_per_processor_second": round(options.batch * options.length / min(processor), 1),
    "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    "first_step_s": round(first, 2),
    "loss": round(value, 4),
}), flush=True)
if world_size > 1:
    dist.destroy_process_group()
