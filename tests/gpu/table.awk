# SPDX-License-Identifier: Apache-2.0
# The results of tests/gpu/run as markdown.
BEGIN { FS = "\t" }
function cell(s) { gsub(/\|/, "/", s); return s }
$2 == "pass" || $2 == "fail" || $2 == "skip" { n[$2]++; tests[++t] = "| " $1 " | " cell($3) " | " $2 " | " cell($4) " |" }
$2 == "figure" {
	if ($8 == "holds") n["pass"]++
	if ($8 == "MISSED") n["fail"]++
	figures[++f] = "| " cell($3) " | " cell($4) " | " cell($5) " | " cell($6) " | " cell($7) ($8 == "" ? "" : " " $8) " |"
}
$2 == "note" { notes[++m] = substr($0, length($1) + length($2) + 3); of[m] = $1 }
END {
	for (i = 1; i <= m; i++) if (of[i] == "machine") print notes[i] "\n"
	if (f) {
		print "| | dtrain | peer | ratio | wanted |\n| --- | --- | --- | --- | --- |"
		for (i = 1; i <= f; i++) print figures[i]
		print ""
	}
	for (i = 1; i <= m; i++) if (of[i] != "machine") {
		line = notes[i] ~ /^\|/
		if (!line && i > 1) print ""
		print notes[i]
		if (!line) print ""
	}
	if (t) {
		print "\n| part | test | | |\n| --- | --- | --- | --- |"
		for (i = 1; i <= t; i++) print tests[i]
		print ""
	}
	printf "%d passed, %d failed, %d skipped\n", n["pass"], n["fail"], n["skip"]
	exit n["fail"] > 0
}
