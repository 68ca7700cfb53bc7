# SPDX-License-Identifier: Apache-2.0
"""Each optimizer beside PyTorch's own, or beside its authors' algorithm where PyTorch has none: the same weights,
gradients, clipping and rates, on each number of ranks. optimizers.py OPTIMIZER_DUMP STEPS RANKS ..."""
import subprocess
import sys
import tempfile

import numpy as np
import torch

STEPS = int(sys.argv[2])
RATE, BETAS, EPSILON, DECAY, MOMENTUM = 1e-2, (0.9, 0.99), 1e-8, 0.1, 0.9


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, algorithm 2."""

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                p.data.add_(torch.sign(m * BETAS[0] + p.grad * (1 - BETAS[0])), alpha=-group["lr"])
                m.mul_(BETAS[1]).add_(p.grad, alpha=1 - BETAS[1])


class Lamb(torch.optim.Optimizer):
    """You et al. 2020, algorithm 2, with phi the identity."""

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                s = self.state[p]
                if not s:
                    s.update(m=torch.zeros_like(p), v=torch.zeros_like(p), t=0)
                s["t"] += 1
                s["m"].mul_(BETAS[0]).add_(p.grad, alpha=1 - BETAS[0])
                s["v"].mul_(BETAS[1]).add_(p.grad**2, alpha=1 - BETAS[1])
                r = s["m"] / (1 - BETAS[0] ** s["t"]) / (torch.sqrt(s["v"] / (1 - BETAS[1] ** s["t"])) + EPSILON)
                r = r + group["weight_decay"] * p.data
                ratio = p.data.norm() / r.norm() if p.data.norm() > 0 and r.norm() > 0 else 1
                p.data.sub_(group["lr"] * ratio * r)


class Lars(torch.optim.Optimizer):
    """You et al. 2017, algorithm 1, for matrices; plain momentum for the rest."""

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                d = p.grad + group["weight_decay"] * p.data
                if p.dim() == 2:
                    d = d * 0.001 * p.data.norm() / (p.grad.norm() + group["weight_decay"] * p.data.norm() + EPSILON)
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.mul_(MOMENTUM).add_(d)
                p.data.sub_(group["lr"] * m)


class ExactMuon(torch.optim.Optimizer):
    """torch.optim.Muon's step without its rounding to bf16."""

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - MOMENTUM)
                x = p.grad.lerp(m, MOMENTUM) if group["nesterov"] else m
                x = (x.T if x.shape[0] > x.shape[1] else x).double()
                x = x / (x.norm() + 1e-7)
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
                x = (x.T if p.shape[0] > p.shape[1] else x).float()
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                p.data.sub_(group["lr"] * 0.2 * max(p.shape) ** 0.5 * x)


def muon(groups, nesterov, matrices_by):
    """The matrices of the blocks by Muon, the rest by AdamW."""
    takes = lambda g: g["block"] and g["params"][0].dim() == 2
    blocks, rest = [g for g in groups if takes(g)], [g for g in groups if not takes(g)]
    return [matrices_by(blocks, nesterov), torch.optim.AdamW(rest, lr=RATE, betas=BETAS, eps=EPSILON)]


def lion(groups, nesterov):
    return [Lion(groups, dict(lr=RATE, weight_decay=DECAY))]


KINDS = {
    "adamw": (lambda g, n: [torch.optim.AdamW(g, lr=RATE, betas=BETAS, eps=EPSILON)], [False]),
    "sgd": (lambda g, n: [torch.optim.SGD(g, lr=RATE, momentum=MOMENTUM, nesterov=n)], [False, True]),
    "lion": (lion, [False]),
    "lamb": (lambda g, n: [Lamb(g, dict(lr=RATE, weight_decay=DECAY))], [False]),
    "lars": (lambda g, n: [Lars(g, dict(lr=RATE, weight_decay=DECAY))], [False]),
    "adafactor": (lambda g, n: [torch.optim.Adafactor(g, lr=RATE)], [False]),
    "muon": (
        lambda g, n: muon(g, n, lambda b, n: ExactMuon(b, dict(lr=RATE, weight_decay=DECAY, nesterov=n))),
        [False, True],
    ),
}


def torch_muon(groups, nesterov):
    return muon(
        groups,
        nesterov,
        lambda b, n: torch.optim.Muon(
            b, lr=RATE, weight_decay=DECAY, momentum=MOMENTUM, nesterov=n, adjust_lr_fn="match_rms_adamw"
        ),
    )


def dump(program, kind, ranks, nesterov, intermediate):
    with tempfile.TemporaryDirectory() as where:
        out = subprocess.run(
            [program, kind, str(ranks), str(STEPS), str(int(nesterov)), str(intermediate), where],
            check=True, capture_output=True, text=True,
        )
        lines = [line.split() for line in out.stdout.splitlines()]
        parameters = [(n, int(r), int(c), m == "1", int(u)) for n, r, c, m, u in lines]
        read = lambda name: np.fromfile(f"{where}/{name}", dtype=np.float32)
        return parameters, read("initial"), read("gradients").reshape(STEPS, -1), read("final")


def torch_steps(make, parameters, initial, gradients, nesterov):
    tensors, at = [], 0
    for _, rows, cols, matrix, _ in parameters:
        shape = (rows, cols) if matrix else (rows,)
        n = rows * cols
        tensors.append(torch.nn.Parameter(torch.tensor(initial[at : at + n].reshape(shape))))
        at += n
    groups = [
        dict(params=[t], weight_decay=DECAY if p[3] else 0.0, block=p[4] == 1, factor=0.5 if p[4] == 0 else 1)
        for t, p in zip(tensors, parameters)
    ]
    optimizers = make(groups, nesterov)
    for step in range(1, STEPS + 1):
        at = 0
        for t in tensors:
            t.grad = torch.tensor(gradients[step - 1, at : at + t.numel()].reshape(t.shape))
            at += t.numel()
        torch.nn.utils.clip_grad_norm_(tensors, 1.0)
        for o in optimizers:
            for group in o.param_groups:
                group["lr"] = RATE * (1 - 0.5 * step / STEPS) * group["factor"]
            o.step()
    return np.concatenate([t.detach().numpy().ravel() for t in tensors])


def main():
    program, failed = sys.argv[1], 0

    def check(what, got, want, initial, most):
        nonlocal failed
        # Of how far the weights have moved.
        error = np.abs(got - want).max() / np.abs(want - initial).max()
        ok = error <= most
        failed += not ok
        print(f"{what}: {error:.1e} of the largest movement{'' if ok else f', more than {most:.0e}'}")

    for kind, (make, variants) in KINDS.items():
        # Of 1: matrices of one row and of one column.
        cases = [(n, 48) for n in variants] + ([(False, 1)] if kind == "adafactor" else [])
        for nesterov, intermediate in cases:
            for ranks in map(int, sys.argv[3:]):
                parameters, initial, gradients, final = dump(program, kind, ranks, nesterov, intermediate)
                want = torch_steps(make, parameters, initial, gradients, nesterov)
                # The sign that Lion takes turns over where rounding decides it; the ranks' shares are rounded.
                most = 2.1e-2 if kind == "lion" else 1e-3 if kind == "muon" else 1e-4
                what = f"{kind}{' with nesterov' if nesterov else ''}{', matrices of one row' if intermediate == 1 else ''}"
                check(f"{what}, {ranks} rank(s)", final, want, initial, most)
                if kind == "muon" and ranks == 1:
                    want = torch_steps(torch_muon, parameters, initial, gradients, nesterov)
                    check(f"{kind}, torch.optim.Muon in bf16", final, want, initial, 5e-2)
    sys.exit(failed > 0)


main()
