# SPDX-License-Identifier: Apache-2.0
"""reward_program.py [FILE [NAME NAME]]   gives completions their rewards, and appends what it was asked, with the rewards, to the file. The rewards depend on the tokens
alone: how many of them are even, a bonus for an end, which come
as parts of these names where there are some; the shortest prompts' completions all have the same."""
import json
import sys

record = open(sys.argv[1], "a") if len(sys.argv) > 1 else None
for line in sys.stdin:
    one = json.loads(line)
    ids = one["completion_ids"]
    parts = (0.375, 0.125) if len(one["prompt_ids"]) < 6 else (sum(i % 2 == 0 for i in ids) / len(ids) - 0.125, 0.125 + 0.25 * one["finished"])
    reward = parts[0] + parts[1]
    if record:
        record.write(json.dumps({**one, "reward": reward}) + "\n")
        record.flush()
    print(*map("{}={}".format, sys.argv[2:], parts) if sys.argv[2:] else [reward], flush=True)
