# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # the functions and variables are those of test_package, which sources this
# What a run may use, what it may see of others, and what it leaves, on the nodes of test_package, with slot_memory = 0.0625 and slot_tasks = 50.
echo "== runs among others"
for n in n1 n2; do node "$n" useradd --create-home --uid 4244 --groups dtrain bob; done
as_bob() { node n1 runuser -u bob -- sh -c "cd && $*"; }
script() { cat >"$DTB_DIR/n1/root/home/$1/$2"; node n1 chown "$1:" "/home/$1/$2"; } # USER NAME: from standard input
run_n1() { as_alice n1 "dtrain submit --follow --set resources.hosts=n1 $1" 2>&1; }   # its output and its status
gone() { ! node n1 test -e "$1"; }

node n1 sh -c 'echo "alice hard nproc 777" >/etc/security/limits.d/dtrain-test.conf'
limits=$(run_n1 '--set resources.core_files=true -- cat /proc/self/limits' | tr -s ' ')
tap "limits.d holds for a rank" is_like "$limits" "Max processes 777 777"
tap "a core file is limited where the run asks for it" is_like "$limits" "Max core file size 17179869184 17179869184"
tap "and there is none by default" is_like "$(run_n1 '-- cat /proc/self/limits' | tr -s ' ')" "Max core file size 0 0"
node n1 rm /etc/security/limits.d/dtrain-test.conf

# The service sees the files of users as their runs do: what is mounted later, and what is read-only for the service alone.
node n1 sh -c 'mkdir /srv/late /usr/scratch && mount -t tmpfs late /srv/late && chown alice: /srv/late /usr/scratch'
tap "a run begins in a directory that was mounted after the start of the service" node n1 runuser -u alice -- sh -c \
	'cd /srv/late && dtrain submit --wait --set resources.hosts=n1 -- touch x && test -e x'
tap "and its output may be below /usr" as_alice n1 \
	'dtrain submit --wait --set resources.nodes=1 --set resources.hosts=n1 --set train.max_steps=1 --set output.dir=/usr/scratch/tiny tiny.conf'
tap "where a file system is read-only for all, the run is refused" is_like "$(node n1 sh -c 'mkdir /srv/fixed && mount -t tmpfs -o ro,mode=777 fixed /srv/fixed' &&
	as_alice n1 'dtrain submit --wait --set resources.nodes=1 --set resources.hosts=n1 --set output.dir=/srv/fixed/tiny tiny.conf' 2>&1 || true)" \
	"alice cannot write to /srv/fixed: Read-only file system"
node n1 umount /srv/late /srv/fixed

script alice orphan.sh <<-'EOT'
	setsid --wait sh -c 'env -i setsid sleep 4706 &'
EOT
tap "a program leaves an orphan in a session of its own" run_n1 '-- sh orphan.sh'
tap "the orphan ends with the unit" fails left 4706

script alice tasks.sh <<-'EOT'
	i=0
	while [ $((i += 1)) -le 60 ]; do sleep 4707 & done
EOT
tap "slot_tasks bounds what a run starts" is_like "$(run_n1 '-- sh tasks.sh' || true)" "Cannot fork"

script alice memory.sh <<-'EOT'
	mkfifo pipe && head -c 300M /dev/zero >pipe &
	until [ -p pipe ]; do :; done
	exec tail -n 1 pipe >/dev/null
EOT
# One rank, which is the program that needs more than slot_memory: the kernel ends it, and no other process of its run.
if node n1 sh -c 'test -e /sys/fs/cgroup/memory/cgroup.procs || grep -qw memory /sys/fs/cgroup/cgroup.controllers'; then
	tap "a rank beyond slot_memory is killed, and the reason says why" is_like "$(stop_reason "$(on_n1 '-- sh memory.sh')")" "out of memory"
else
	echo "no limits of memory: this machine has no controller for them"
fi

script alice private.sh <<-'EOT'
	echo secret
	touch "$TMPDIR/x"
	echo "$TMPDIR" >private.new
	mv private.new private.dir
	exec sleep 4708
EOT
id=$(on_n1 '-- sh private.sh')
until_true 60 "alice's run" node n1 test -s /home/alice/private.dir
dir=$(node n1 cat /home/alice/private.dir)
files="/var/log/dtrain/$id/1/rank-0.log $dir/x /run/dtrain/attempts/$id.1/launch.json /var/lib/dtrain/dtrain.db"
# shellcheck disable=SC2086 # several names
tap "alice's run has its files" node n1 ls $files
script bob look.sh <<-EOT
	for file in $files; do if head -c 1 "\$file" >/dev/null 2>&1; then echo "bob reads \$file"; fi; done
	if ls "$dir" >/dev/null 2>&1; then echo "bob lists $dir"; fi
	echo looked
EOT
tap "a run of bob's reads none of them" is_equal "$(as_bob 'dtrain submit --follow --set resources.hosts=n1 -- sh look.sh' 2>/dev/null)" looked
tap "the service refuses him the log" is_like "$(as_bob "dtrain logs $id" 2>&1 || true)" "only"
tap "and the end of the run, too" fails as_bob "dtrain cancel $id"
as_alice n1 "dtrain cancel $id"
as_alice n1 "dtrain watch $id" >/dev/null 2>&1 || true
tap "temporary files go with a cancelled run" until_true 60 "their removal" gone "$dir"
