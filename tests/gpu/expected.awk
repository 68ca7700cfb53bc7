# SPDX-License-Identifier: Apache-2.0
# Reads expected.tsv and the output of train_bench profile=1, and prints the time of each kind of operations: kind, ms, "<= MS" where one is expected.
BEGIN { FS = "\t" }
/^#/ { next }
FNR == NR { kind[++kinds] = $1; pattern[kinds] = $2; expected[kinds] = $3; next }
$1 == "profile total" { if ($3 + 0 > 0) total = $3; next }
$1 == "profile" {
	for (k = 1; k <= kinds; k++)
		if (pattern[k] != "" && $2 ~ pattern[k]) { ms[k] += $4; break }
}
END {
	for (k = 1; k <= kinds; k++)
		printf "%s\t%.2f\t%s\n", kind[k], pattern[k] == "" ? total : ms[k], expected[k] == "" ? "" : "<= " expected[k]
}
