# The program that gives completions their rewards in grpo.conf. It reads a line of JSON for each completion, and writes a line with its reward,
# which here is 0 to 1: the share of words that completion and known answer have in common (their F1), halved where the completion was cut off.
import collections
import json
import re
import sys


def words(text):
    return collections.Counter(re.findall(r"\w+", text.lower()))


for line in sys.stdin:
    item = json.loads(line)
    got, wanted = words(item["completion"]), words(item["answer"] or "")
    both = sum((got & wanted).values())
    reward = 2 * both / max(1, sum(got.values()) + sum(wanted.values()))
    if not item["finished"]:
        reward /= 2
    # Without the flush, the run would wait for a reward that is still in a buffer.
    print(reward, flush=True)
