# SPDX-License-Identifier: Apache-2.0
# The results of tests/gpu/run as markdown.
BEGIN { FS = "\t" }
function cell(s) { gsub(/\|/, "/", s); return s }
# A figure that is written again takes the place of the earlier one.
$2 == "figure" && ($1, $3) in at {
	i = at[$1, $3]
	if (held[i] == "holds") n["pass"]--
	if (held[i] == "MISSED") n["fail"]--
}
$2 == "pass" || $2 == "fail" || $2 == "skip" { n[$2]++; tests[++t] = "| " $1 " | " cell($3) " | " $2 " | " cell($4) " |" }
$2 == "figure" {
	if ($8 == "holds") n["pass"]++
	if ($8 == "MISSED") n["fail"]++
	i = ($1, $3) in at ? at[$1, $3] : ++f
	at[$1, $3] = i
	held[i] = $8
	figures[i] = "| " cell($3) " | " cell($4) " | " cell($5) " | " cell($6) " | " cell($7) ($8 == "" ? "" : " " $8) " |"
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
