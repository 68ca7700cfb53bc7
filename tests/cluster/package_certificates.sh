# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # the functions and variables are those of test_package, which sources this
# A certificate for each node, by the commands of dtraind(8), on the nodes of test_package: what they take from each other, what they refuse and
# say of it, and an authority that is replaced under a run. At the end the nodes have the cluster's key again.
echo "== a certificate for each node"
tls=/etc/dtrain/tls
authority() { # NAME: an authority on n1, in /root/NAME, with a certificate for each node
	node n1 dtrain keygen --ca "/root/$1" && node n1 dtrain keygen --ca "/root/$1" --node n1 && node n1 dtrain keygen --ca "/root/$1" --node n2
}
give() { # NODE AUTHORITY [NAME]: the certificate with this name, that of the node
	local dir=$DTB_DIR/n1/root/root/$2/nodes name=${3:-$1}
	mkdir -p "$DTB_DIR/$1/root$tls"
	cp "$dir/$name.pem" "$DTB_DIR/$1/root$tls/node.pem"
	cp "$dir/$name.key" "$DTB_DIR/$1/root$tls/node.key"
	chmod 600 "$DTB_DIR/$1/root$tls/node.key"
}
trust() { # NODE AUTHORITY…
	local n=$1 name
	shift
	for name in "$@"; do cat "$DTB_DIR/n1/root/root/$name/ca.pem"; done >"$DTB_DIR/$n/root$tls/ca.pem"
}
# The lines of a service's journal, since mark NODE, that have this text.
mark() { node "$1" journalctl --sync && cursor=$(node "$1" journalctl -u dtraind -n 0 --show-cursor --no-pager | sed -n 's/^-- cursor: //p'); }
lines() { node "$1" journalctl -u dtraind --after-cursor "$cursor" --no-pager -o cat | grep -F -- "$2"; }
# One line, however often it was tried.
says() { # NODE TEXT
	until_true 60 "\"$2\" in the journal of $1" lines "$1" "$2"
	lines "$1" "$2" | cut -c 1-200
	is_equal "$(lines "$1" "$2" | sort -u | wc -l)" 1
}
starts() { node "$1" systemctl reset-failed dtraind; node "$1" systemctl restart dtraind; }

authority ca >/dev/null && authority other >/dev/null || die "the authorities cannot be made"
for n in n1 n2; do
	give $n ca
	trust $n ca
	echo "certificate = \"$tls/node.pem\"; certificate_key = \"$tls/node.key\"; ca_file = \"$tls/ca.pem\";" >>"$DTB_DIR/$n/root/etc/dtrain/dtraind.conf"
	starts $n
done
tap "nodes with a certificate each see each other" as_alice n2 'dtrain nodes --wait 2 --timeout 60'
tap "and run over both" as_alice n2 'dtrain submit --wait --nodes 2 -- true'

mark n2
give n2 ca n1
tap "a service with the certificate of another node does not start" fails starts n2
tap "and says so" says n2 "$tls/node.pem is not the certificate of this node: n2 is not among its names"

mark n2
give n2 other
tap "nor does one with a certificate of an authority that it does not trust itself" fails starts n2
tap "and says so" says n2 "$tls/node.pem: "

mark n2
trust n2 other
tap "one that trusts another authority alone does not take the controller for one" starts n2
tap "and says so" says n2 "cannot reach controller n1: "

if command -v openssl >/dev/null; then
	ca=$DTB_DIR/n1/root/root/ca
	mkdir -p "$tmp/expired"
	touch "$tmp/expired/index"
	cat >"$tmp/expired/conf" <<-EOT
		[ca]
		default_ca = ca
		[ca]
		database = $tmp/expired/index
		new_certs_dir = $tmp/expired
		default_md = sha256
		rand_serial = yes
		unique_subject = no
		policy = any
		x509_extensions = names
		[any]
		commonName = optional
		[names]
		subjectAltName = DNS:n2
	EOT
	openssl req -new -key "$ca/nodes/n2.key" -subj /CN=n2 -out "$tmp/expired/csr" &&
		openssl ca -batch -notext -config "$tmp/expired/conf" -cert "$ca/ca.pem" -keyfile "$ca/ca.key" -in "$tmp/expired/csr" \
			-startdate 20200101000000Z -enddate 20200102000000Z -out "$ca/nodes/expired.pem" 2>"$tmp/expired/log" || { cat "$tmp/expired/log"; die "openssl ca"; }
	cp "$ca/nodes/n2.key" "$ca/nodes/expired.key"
	mark n2
	give n2 ca expired
	trust n2 ca
	tap "a service whose certificate has expired does not start" fails starts n2
	tap "and says so" says n2 "expired"
else
	echo "an expired certificate cannot be made without openssl"
fi

give n2 ca
trust n2 ca
starts n2 || die "n2 does not start again"
tap "with its own certificate the node is back" as_alice n2 'dtrain nodes --wait 2 --timeout 60'

# In the order of dtraind(8), with a reload of both after each step, and a run over both all the time.
as_alice n1 'rm -f rotated && mkfifo rotated'
as_alice n2 'rm -f rotated && mkfifo rotated'
id=$(as_alice n1 'dtrain submit --json --nodes 2 -- cat rotated' | jq .id)
await_running "$id"
mark n2
for n in n1 n2; do trust $n ca other; done
for n in n1 n2; do node $n systemctl reload dtraind; done
for n in n1 n2; do give $n other; done
for n in n1 n2; do node $n systemctl reload dtraind; done
for n in n1 n2; do trust $n other; done
for n in n1 n2; do node $n systemctl reload dtraind; done
tap "the nodes see each other after an authority was replaced" as_alice n2 'dtrain nodes --wait 2 --timeout 60'
tap "a node was not lost meanwhile" fails lines n2 "cannot reach controller"
for n in n1 n2; do as_alice $n 'timeout 20 sh -c "echo on >rotated"' || die "the run on $n did not outlive the rotation"; done
tap "a run goes on meanwhile" as_alice n1 "dtrain watch $id"

mark n1
give n2 ca
trust n2 other ca
tap "a node with a certificate of an authority that the controller does not trust, the old one" node n2 systemctl reload dtraind
tap "is refused by it" says n1 "a service is refused: "

for n in n1 n2; do
	sed -i '/^certificate = /d' "$DTB_DIR/$n/root/etc/dtrain/dtraind.conf"
	rm -r "$DTB_DIR/$n/root$tls"
	starts $n
done
as_alice n2 'dtrain nodes --wait 2 --timeout 120' || die "the nodes do not see each other with the cluster's key"
