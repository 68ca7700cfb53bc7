# SPDX-License-Identifier: Apache-2.0
"""The peers' side of tests/bench/peers: one rank of PyTorch's FSDP2 or of DeepSpeed's ZeRO over Gloo.

peers.py make CONFIG TOKENIZER DIR                            random start weights, with the tokenizer beside them
peers.py train NAME PRECISION DIR ROWS METRICS                trains on the rows (rows_dump's lines); rank 0 writes a line of METRICS a step

NAME: fsdp2, fsdp2_grad, fsdp2_rotary, autocast, deepspeed1, deepspeed2 or deepspeed3.
"""
import json
import os
import re
import shutil
import sys
import time

import torch
import torch.distributed as dist
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

ADAMW = dict(lr=3e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)


def make(config, tokenizer, directory):
    torch.manual_seed(0)
    with open(config) as f:
        LlamaForCausalLM(LlamaConfig(**json.load(f))).save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"{tokenizer}/{name}", directory)


def loss_of(logits, batch, counted, world):
    """This rank's part of the mean over the targets of all ranks, times their number: gradients are averaged over the ranks."""
    targets = torch.full(logits.shape[:2], -100)
    for i, r in enumerate(batch):
        targets[i, : len(r["targets"])] = torch.tensor(r["targets"])
    total = torch.nn.functional.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.view(-1), ignore_index=-100, reduction="sum")
    return total * world / counted


def batches(path, rank, world):
    """This rank's rows of each step as ids and rows, and the number of targets that all ranks count."""
    with open(path) as lines:
        for line in lines:
            rows = json.loads(line)["rows"]
            assert all(len(r["starts"]) == 2 for r in rows), "packed rows need a block mask"
            own = rows[rank * len(rows) // world : (rank + 1) * len(rows) // world]
            ids = torch.zeros(len(own), max(len(r["ids"]) for r in own), dtype=torch.long)
            for i, r in enumerate(own):
                ids[i, : len(r["ids"])] = torch.tensor(r["ids"])  # What follows a row's end no target of the row attends to.
            yield ids, own, sum(t != -100 for r in rows for t in r["targets"])


class Fp32Rotary(LlamaRotaryEmbedding):
    """Tables that are not rounded to the type of the hidden states."""

    def forward(self, x, position_ids):
        return super().forward(x.float(), position_ids)


def rotate_in_fp32():
    rotate = modeling_llama.apply_rotary_pos_emb
    modeling_llama.apply_rotary_pos_emb = lambda q, k, *tables, **more: tuple(
        rotated.to(q.dtype) for rotated in rotate(q.float(), k.float(), *tables, **more))


class Fsdp2:
    """fully_shard of each layer and of the rest, from the meta device: no rank ever holds the whole model."""

    def __init__(self, config, directory, precision, reshard, rotary):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        with torch.device("meta"):
            self.model = LlamaForCausalLM(config)
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if precision == "bf16" else MixedPrecisionPolicy()
        for layer in self.model.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        fully_shard(self.model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        self.model.to_empty(device="cpu")
        self.model.model.rotary_emb = rotary(config)
        with safe_open(f"{directory}/model.safetensors", "pt") as f, torch.no_grad():
            for name, p in self.model.named_parameters():
                local = p.to_local()
                own = torch.chunk(f.get_tensor(name), dist.get_world_size(), 0)
                if dist.get_rank() < len(own):
                    local.copy_(own[dist.get_rank()])
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True, **ADAMW)

    def step(self, ids, batch, counted):
        loss = loss_of(self.model(input_ids=ids, use_cache=False).logits, batch, counted, dist.get_world_size())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


class Autocast:
    """DistributedDataParallel, with weights and residual stream in fp32, products and attention in bf16."""

    def __init__(self, config, directory, precision):
        self.model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="sdpa")
        self.model.train()
        self.parallel = torch.nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True, **ADAMW)
        self.casts = precision == "bf16"

    def step(self, ids, batch, counted):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.casts):
            logits = self.parallel(input_ids=ids, use_cache=False).logits
        loss = loss_of(logits, batch, counted, dist.get_world_size())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


class DeepSpeed:
    def __init__(self, config, directory, precision, stage):
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo")
        settings = {
            "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
            "zero_allow_untested_optimizer": True, "steps_per_print": 1 << 30, "zero_force_ds_cpu_optimizer": False,
            "bf16": {"enabled": precision == "bf16"},
            # Buckets of a layer or two. The defaults are buffers of 2 GB.
            "zero_optimization": {"stage": stage, "reduce_bucket_size": 8000000, "allgather_bucket_size": 8000000,
                                  "stage3_prefetch_bucket_size": 8000000, "stage3_max_live_parameters": 16000000,
                                  "stage3_param_persistence_threshold": 10000},
        }
        model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="sdpa")
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True, **ADAMW)
        self.engine = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]

    def step(self, ids, batch, counted):
        loss = loss_of(self.engine(input_ids=ids, use_cache=False).logits, batch, counted, dist.get_world_size())
        self.engine.backward(loss)
        self.engine.step()
        return loss.detach()


def make_trainer(name, config, directory, precision):
    if name == "autocast":
        return Autocast(config, directory, precision)
    if name.startswith("deepspeed"):
        return DeepSpeed(config, directory, precision, int(name[-1]))
    if name == "fsdp2_rotary":
        rotate_in_fp32()
    return Fsdp2(config, directory, precision, name != "fsdp2_grad", Fp32Rotary if name == "fsdp2_rotary" else LlamaRotaryEmbedding)


def train(name, precision, directory, rows, metrics):
    torch.set_num_threads(1)
    config = LlamaConfig.from_pretrained(directory, attn_implementation="sdpa", dtype=torch.float32)
    config._attn_implementation = "sdpa"
    if not name.startswith("deepspeed"):
        dist.init_process_group("gloo")
    with open("/proc/self/status") as f:
        kib = int(re.search(r"VmHWM:\s*(\d+)", f.read())[1])
    print(f"before the model: {kib / 1024:.1f} MiB", flush=True)
    trainer = make_trainer(name, config, directory, precision)
    world, rank = dist.get_world_size(), dist.get_rank()
    with open(metrics if rank == 0 else os.devnull, "w") as log:
        begun = time.monotonic()
        for ids, batch, counted in batches(rows, rank, world):
            loss = trainer.step(ids, batch, counted)
            dist.all_reduce(loss)
            value, now = loss.item() / world, time.monotonic()
            print(json.dumps({"loss": value, "step_seconds": now - begun}), file=log, flush=True)
            begun = now
    time.sleep(60)  # Until the ranks' memory has been read.


{"make": make, "train": train}[sys.argv[1]](*sys.argv[2:])
