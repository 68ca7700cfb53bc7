#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/unit/scaler_cases.h: what DeepSpeed's DynamicLossScaler does with sequences of overflows.

    loss_scaler.py [LOSS_SCALER_PY]            # prints the file
    loss_scaler.py --check FILE [LOSS_SCALER_PY]   # fails where FILE differs; exit status 77 without DeepSpeed

LOSS_SCALER_PY is deepspeed/runtime/fp16/loss_scaler.py of an unpacked DeepSpeed; without it the module is imported.
"""
import importlib.util
import random
import sys
import types

VERSION = "0.19.8"
# power, window, hysteresis, consecutive, least, overflows (x) and other steps (.)
CASES = [
    (16, 1000, 2, False, 1, "x.x.xx" + "." * 30),
    (16, 4, 2, False, 1, "...................."),
    (16, 4, 2, False, 1, "xx....x....x.....x...x.xx........x"),
    (16, 4, 2, True, 1, "xx....x....x.....x...x.xx........x"),
    (16, 3, 1, False, 1, "x..x...x....x.....xxx......."),
    (16, 1, 3, False, 1, "..x.x.xxx....xxxx..x"),
    (3, 5, 1, False, 1, "xxxxx"),
    (3, 5, 2, False, 4, "xx.x..........xxxxx"),
    (4, 5, 2, True, 0.5, "x.x.xx.xxxxxxxxx"),
]


def random_cases():
    generator = random.Random(7)
    for _ in range(6):
        rate = generator.choice([0.05, 0.2, 0.4])
        yield (generator.randint(4, 20), generator.randint(1, 6), generator.randint(1, 4), generator.random() < 0.5, 2.0 ** generator.randint(-3, 2),
               "".join("x" if generator.random() < rate else "." for _ in range(80)))


class Stub(types.ModuleType):
    """What the module imports without using it in this class."""

    __path__ = []
    DeepSpeedConfigObject = object
    comm = types.SimpleNamespace(get_rank=lambda: 0)
    logger = types.SimpleNamespace(info=lambda text: None, warning=lambda text: None)

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


def stub(*names):
    for name in names:
        sys.modules[name] = Stub(name)


def scaler_class(path):
    if not path:
        try:
            from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler
        except ImportError:
            sys.exit(77)
        return DynamicLossScaler
    stub("torch", "deepspeed", "deepspeed.runtime", "deepspeed.runtime.config_utils", "deepspeed.runtime.utils", "deepspeed.runtime.loss_scale_validation",
         "deepspeed.utils")
    spec = importlib.util.spec_from_file_location("loss_scaler", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.DynamicLossScaler


def run(cls, power, window, hysteresis, consecutive, least, overflows):
    scaler = cls(init_scale=2.0 ** power, scale_window=window, min_scale=least, delayed_shift=hysteresis, consecutive_hysteresis=consecutive)
    scales = []
    for overflow in overflows:
        try:
            scaler.update_scale(overflow == "x")
        except Exception as e:
            assert "already at minimum" in str(e), e
            break
        scales.append(scaler.cur_scale)
    return scales


def header(cls):
    lines = [
        "/* SPDX-License-Identifier: Apache-2.0 */",
        "/* clang-format off */",
        "/* Made by tests/engine/loss_scaler.py with the DynamicLossScaler of DeepSpeed " + VERSION + ": the scale after each",
        " * step, where x is an overflow. The class raises an error in the step after the last scale, where there is one. */",
        "#pragma once",
        "",
        "static const struct scaler_case {",
        "\tstruct loss_scaler_options o;",
        "\tconst char *overflows;",
        "\tint scales;",
        "\tdouble scale[80];",
        "} scaler_cases[] = {",
    ]
    for case in CASES + list(random_cases()):
        power, window, hysteresis, consecutive, least, overflows = case
        scales = run(cls, *case)
        lines.append(f"\t{{{{0, {power}, {window}, {hysteresis}, {'true' if consecutive else 'false'}, {least:g}}}, \"{overflows}\", {len(scales)},")
        texts = [f"{s:.17g}" for s in scales]
        for i in range(0, len(texts), 16):
            lines.append("\t " + ("{" if i == 0 else " ") + ", ".join(texts[i:i + 16]) + ("}}," if i + 16 >= len(texts) else ","))
    return "\n".join(lines + ["};", "/* clang-format on */", ""])


def main():
    args = sys.argv[1:]
    check = args[1] if args[:1] == ["--check"] else None
    rest = args[2:] if check else args
    text = header(scaler_class(rest[0] if rest else None))
    if not check:
        print(text, end="")
    elif open(check).read() != text:
        sys.exit(f"{check} is not what this DeepSpeed does")


main()
