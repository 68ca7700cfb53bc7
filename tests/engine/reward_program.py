# SPDX-License-Identifier: Apache-2.0
"""reward_program.py [FILE [NAME NAME]] [--stop-at=N]   gives completions their rewards, and appends what it was asked, with the rewards, to the file. The rewards depend on the tokens
alone: how many of them are even, a bonus for an end, which come
as parts of these names where there are some; the shortest prompts' completions all have the same.
In place of reward N, from 0, it stops the process that has started it, and gives none any more."""
import json
import os
import signal
import sys

stop_at = [int(a.split("=")[1]) for a in sys.argv if a.startswith("--stop-at=")]
arguments = [a for a in sys.argv[1:] if not a.startswith("--stop-at=")]
record = open(arguments[0], "a") if arguments else None
for number, line in enumerate(sys.stdin):
    if number in stop_at:
        os.kill(os.getppid(), signal.SIGTERM)
        signal.pause()
    one = json.loads(line)
    ids = one["completion_ids"]
    parts = (0.375, 0.125) if len(one["prompt_ids"]) < 6 else (sum(i % 2 == 0 for i in ids) / len(ids) - 0.125, 0.125 + 0.25 * one["finished"])
    reward = parts[0] + parts[1]
    if record:
        record.write(json.dumps({**one, "reward": reward}) + "\n")
        record.flush()
    print(*map("{}={}".format, arguments[1:], parts) if arguments[1:] else [reward], flush=True)
