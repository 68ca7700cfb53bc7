/* SPDX-License-Identifier: Apache-2.0 */
/* Starting an attempt: leases, users, preflight, the environment of the ranks. */
#include "node_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/str.h"
#include "config/run.h"
#include "node/gpu/devices.h"
#include "node/launch/preflight.h"
#include "node/preflight_process.h"
#include "node/request.h"

static struct fixture f;

static void setup(void)
{
	fixture_setup(&f);
}

static void teardown(void)
{
	fixture_teardown(&f);
}

/* The request has to be refused with that code and message, and no slot is leased after it. */
static void refused(json_t *request, int code, const char *words)
{
	struct error err = ERROR_INIT;
	_cleanup_free_ char *dir = fixture_path(&f, "run/attempts/1.1");

	ck_fails(fixture_start(&f, request, &err), &err, words);
	ck_assert_msg(err.code == code, "%s: code %d, not %d", err.message, err.code, code);
	ck_assert_ptr_null(strchr(err.message, '\n'));
	ck_assert_int_eq(node_free_slots(f.node), 2);
	ck_assert(!file_exists(dir));
	json_decref(request);
}

static void set_config(json_t *request, const char *key, json_t *value)
{
	json_object_set_new(json_object_get(request, "config"), key, value);
}

START_TEST(wrong_requests_are_refused)
{
	json_t *q;

	q = fixture_shell(1, 1, ":");
	json_object_set_new(q, "user", json_string("no-such-user"));
	json_object_set_new(q, "uid", json_integer(4711));
	refused(q, -EPERM, "no user 'no-such-user' (uid 4711)");
	q = fixture_shell(1, 1, ":");
	json_object_set_new(q, "uid", json_integer(4711));
	refused(q, -EPERM, "here, but 4711 where the run was submitted");
	q = fixture_shell(1, 1, ":");
	set_config(q, "directory", json_string("/no/such/place"));
	refused(q, -ENOENT, "directory /no/such/place: No such file");
	refused(fixture_request(1, 1, 1, (const char *const[]){"no-such-program", NULL}), -ENOENT,
	        "no program no-such-program in PATH (/usr/local/bin:/usr/bin:/bin)");
	refused(fixture_request(1, 1, 1, (const char *const[]){"/etc/passwd", NULL}), -EACCES,
	        "cannot execute /etc/passwd: Permission denied");
	refused(fixture_shell(1, 3, ":"), -EINVAL, "no slot 2; there are 2, counted from 0");
	q = fixture_shell(1, 2, ":");
	json_object_set_new(json_array_get(json_object_get(q, "ranks"), 1), "slot", json_integer(0));
	refused(q, -EINVAL, "twice");
	refused(json_object(), -EINVAL, "start request: run: missing");
	q = fixture_shell(1, 1, ":");
	set_config(q, "task", json_string("sft"));
	set_config(q, "model", json_pack("{s:s}", "path", "no-such-model"));
	json_object_set_new(q, "node_rank", json_integer(0));
	fixture_launcher(&f, NULL);
	refused(q, -ENOENT, "CPU slots need dtrain-engine-cpu, which is not installed here (no ");
}
END_TEST

START_TEST(what_the_user_may_not_is_refused)
{
	struct passwd *nobody = getpwnam("nobody");
	_cleanup_free_ char *closed = fixture_path(&f, "closed"), *open_dir = fixture_path(&f, "open");
	_cleanup_free_ char *program = fixture_path(&f, "program"), *logs = fixture_path(&f, "log/1/1");
	_cleanup_free_ char *log_path = str_path_join(logs, "rank-0.log");
	struct error err = ERROR_INIT;
	const char *const argv[] = {program, NULL};
	const json_t *rank;
	struct stat st;
	json_t *q;

	if (geteuid() != 0 || !nobody)
		return;
	ck_ok(file_mkdirs(closed, 0700, &err), &err);
	ck_ok(file_write_atomic(program, "#!/bin/sh\nid -un; pwd\n", 22, 0744, &err), &err);
	q = fixture_request(1, 1, 1, argv);
	json_object_set_new(q, "user", json_string("nobody"));
	json_object_set_new(q, "uid", json_integer(nobody->pw_uid));
	refused(json_incref(q), -EACCES, "cannot execute");
	set_config(q, "directory", json_string(closed));
	refused(json_incref(q), -EACCES, "nobody cannot enter directory");
	ck_ok(file_mkdirs(open_dir, 0755, &err), &err);
	ck_assert_int_eq(chmod(program, 0755), 0);
	set_config(q, "directory", json_string(open_dir));
	/* A log that lies there is another run's, from before the runs were counted anew. */
	ck_ok(file_mkdirs(logs, 0755, &err), &err);
	ck_ok(file_write_atomic(log_path, "secret\n", 7, 0600, &err), &err);
	ck_ok(fixture_start(&f, q, &err), &err);
	json_decref(q);
	rank = fixture_rank(fixture_await(&f, 1, "ended"), 0);
	ck_assert_int_eq(json_get_int(rank, "exit_status", -1), 0);
	{
		_cleanup_free_ char *log = fixture_log(&f, 1, 0);
		_cleanup_free_ char *want = str_printf("nobody\n%s\n", open_dir), *path = NULL;

		ck_assert_str_eq(log, want);
		ck_ok(node_log_path(f.node, 1, 1, 0, &path, &err), &err);
		ck_assert_int_eq(stat(path, &st), 0);
		ck_assert_uint_eq(st.st_uid, nobody->pw_uid);
		ck_assert_uint_eq(st.st_mode & 0777, 0600);
	}
	ck_fails(node_log_path(f.node, 1, 0, 1, &(char *){NULL}, &err), &err, "no log of run 1, rank 1");
}
END_TEST

struct told {
	int times, code;
	char message[768];
};

static void on_told(void *context, int code, const char *message)
{
	struct told *t = context;

	t->times++;
	t->code = code;
	snprintf(t->message, sizeof t->message, "%s", message);
}

static void on_looked(void *context, const struct run_user *user, const struct error *err)
{
	ck_assert_int_eq(!user, err != NULL);
	on_told(context, err ? err->code : 0, err ? err->message : "");
}

static struct preflight_spare *spare;

/* The preflight alone. */
static struct told look(const struct preflight_request *what, double seconds)
{
	_cleanup_free_ char *launcher = str_path_join(f.config->worker_dir, "dtrain-launch");
	struct told told = {0};
	struct preflight_call *call;
	struct error err = ERROR_INIT;

	ck_ok(preflight_start(f.event, spare, launcher, what, seconds, on_looked, &told, &call, &err), &err);
	while (!told.times)
		fixture_turn(&f);
	return told;
}

static int count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	ck_assert_ptr_nonnull(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* The end of its process, too, is seen. */
START_TEST(a_preflight_leaves_nothing_open)
{
	struct preflight_request preflight = {.directory = (char *)"/",
	                                      .program = (char *)"/bin/true",
	                                      .log_dir = (char *)"/",
	                                      .uid = getuid()};
	enum { LOOKS = 20 };
	int most = count_fds() + LOOKS / 2; /* the node's spare, which begins meanwhile, has a few */

	preflight.user = getpwuid(getuid())->pw_name;
	for (int i = 0; i < LOOKS; i++)
		look(&preflight, 20);
	for (int i = 0; i < 500 && count_fds() > most; i++)
		ck_assert_int_ge(sd_event_run(f.event, 10000), 0);
	ck_assert_int_le(count_fds(), most);
}
END_TEST

/* A file with the name of output.dir is not an error of permissions. */
START_TEST(an_output_directory_that_is_a_file)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *file = str_path_join(dir, "c.txt");
	struct preflight_request preflight = {
	    .directory = dir, .program = (char *)"/bin/true", .log_dir = dir, .uid = getuid()};
	struct told told;
	static const char *const outputs[] = {"c.txt", "c.txt/model"};
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(file, "", 0, 0644, &err), &err);
	preflight.user = getpwuid(getuid())->pw_name;
	for (size_t i = 0; i < ARRAY_SIZE(outputs); i++) {
		_cleanup_free_ char *want =
		    str_printf("output.dir %s: %s is not a directory", outputs[i], file);

		preflight.output_dir = (char *)outputs[i];
		told = look(&preflight, 20);
		ck_assert_int_eq(told.code, -ENOTDIR);
		ck_assert_str_eq(told.message, want);
	}
	preflight.output_dir = (char *)"not/there/yet";
	told = look(&preflight, 20);
	ck_assert_msg(told.code == 0, "%s", told.message);
	file_remove_tree(dir, NULL);
}
END_TEST

/* A directory with a program in bin, one that is not executable there, and one of each in the directory
 * itself. %s in a message: the directory. */
static const struct {
	const char *directory; /* in it; NULL: itself */
	const char *program, *path, *engine, *model, *output_dir;
	int code;
	const char *message;
} places[] = {
    {.program = "/bin/true"},
    {.directory = "bin", .program = "./tool"},
    {.directory = "none",
     .program = "/bin/true",
     .code = -ENOENT,
     .message =
         "directory %s/none: No such file or directory; a run needs its directory on each of its nodes: "
         "share it, or make copies"},
    {.directory = "bin/tool",
     .program = "/bin/true",
     .code = -ENOTDIR,
     .message = "directory %s/bin/tool is not a directory"},
    {.program = "", .code = -EINVAL, .message = "the command is empty"},
    {.program = "bin/tool"},
    {.program = "bin/plain", .code = -EACCES, .message = "cannot execute %s/bin/plain: Permission denied"},
    {.program = "./bin", .code = -EACCES, .message = "cannot execute %s/./bin: Permission denied"},
    {.program = "bin/none",
     .code = -ENOENT,
     .message = "cannot execute %s/bin/none: No such file or directory"},
    {.program = "bin/none",
     .engine = "cpu",
     .code = -ENOENT,
     .message = "CPU slots need dtrain-engine-cpu, which is not installed here (no %s/bin/none): apt install "
                "dtrain-engine-cpu"},
    {.program = "bin/none",
     .engine = "cuda",
     .code = -ENOENT,
     .message =
         "GPU slots need dtrain-engine-cuda, which is not installed here (no %s/bin/none): apt install "
         "dtrain-engine-cuda"},
    {.program = "bin/plain",
     .engine = "cpu",
     .code = -EACCES,
     .message = "cannot execute %s/bin/plain: Permission denied"},
    /* Without PATH, the usual one. */
    {.program = "true"},
    {.program = "tool", .code = -ENOENT, .message = "no program tool in PATH (/usr/bin:/bin)"},
    /* Its parts are seen from the directory; an empty one is the directory. */
    {.program = "tool", .path = "bin"},
    {.program = "tool", .path = "/nowhere:bin"},
    {.program = "here", .path = "bin:"},
    {.program = "here", .path = "bin", .code = -ENOENT, .message = "no program here in PATH (bin)"},
    {.program = "tool", .path = "", .code = -ENOENT, .message = "no program tool in PATH ()"},
    /* What cannot be executed is passed over, and named where nothing else is found. */
    {.program = "plain", .path = "bin:other"},
    {.program = "plain",
     .path = "none:bin:none",
     .code = -EACCES,
     .message = "cannot execute plain: Permission denied"},
    {.program = "tool", .path = "bin/tool:bin"}, /* a file in place of a directory */
    {.program = "sub", .path = "bin", .code = -EACCES, .message = "cannot execute sub: Permission denied"},
    {.program = "true", .model = "bin"},
    {.program = "true", .model = "/"},
    {.program = "true",
     .model = "none",
     .code = -ENOENT,
     .message = "model %s/none: No such file or directory"},
    {.program = "true",
     .model = "meta-llama/Llama-3.2-1B",
     .code = -ENOENT,
     .message =
         "model %s/meta-llama/Llama-3.2-1B: No such file or directory, and nothing is fetched from hubs "
         "here; download the model and name its directory"},
    {.program = "true", .output_dir = "bin/a/b"},
    {.program = "true", .output_dir = "/nowhere"},
    {.program = "true",
     .output_dir = "loop/a",
     .code = -ELOOP,
     .message = "output.dir %s/loop/a: Too many levels of symbolic links"},
};

START_TEST(a_preflight_looks_at_all_places)
{
	_cleanup_free_ char *dir = unit_tmpdir();
	struct error err = ERROR_INIT;

	ck_assert_int_eq(chdir(dir), 0);
	ck_ok(file_mkdirs("bin/sub", 0755, &err), &err);
	ck_ok(file_mkdirs("other", 0755, &err), &err);
	ck_ok(file_write_atomic("bin/tool", "#!/bin/sh\n", 10, 0755, &err), &err);
	ck_ok(file_write_atomic("bin/plain", "", 0, 0644, &err), &err);
	ck_ok(file_write_atomic("here", "#!/bin/sh\n", 10, 0755, &err), &err);
	ck_ok(file_write_atomic("other/plain", "#!/bin/sh\n", 10, 0755, &err), &err);
	ck_assert_int_eq(symlink("loop", "loop"), 0);
	for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
		_cleanup_free_ char *in = str_path_join(dir, places[i].directory ? places[i].directory : "."),
		                    *want = NULL;
		const char *message = places[i].message, *mark = message ? strstr(message, "%s") : NULL;
		const struct preflight_request what = {.user = getpwuid(geteuid())->pw_name,
		                                       .uid = geteuid(),
		                                       .directory = places[i].directory ? in : dir,
		                                       .program = (char *)places[i].program,
		                                       .path = (char *)places[i].path,
		                                       .engine = (char *)places[i].engine,
		                                       .model = (char *)places[i].model,
		                                       .output_dir = (char *)places[i].output_dir,
		                                       .log_dir = (char *)"/nowhere"};
		const struct told told = look(&what, 20);

		if (message)
			want = mark ? str_printf("%.*s%s%s", (int)(mark - message), message, dir, mark + 2)
			            : strdup(message);
		ck_assert_msg(told.code == places[i].code && str_eq(told.message, want ? want : ""),
		              "%zu: %d: %s", i, told.code, told.message);
	}
	ck_assert_int_eq(chdir("/"), 0);
	file_remove_tree(dir, NULL);
}
END_TEST

/* A relative directory, none, and another user's number. */
START_TEST(a_preflight_knows_its_user)
{
	const struct passwd *self = getpwuid(geteuid());
	struct preflight_request what = {
	    .user = self->pw_name, .uid = self->pw_uid, .program = (char *)"true"};
	struct told told;

	told = look(&what, 20); /* in the home directory */
	ck_assert_msg(told.code == 0, "%s", told.message);
	what.directory = (char *)"tmp";
	told = look(&what, 20);
	ck_assert_int_eq(told.code, -EINVAL);
	ck_assert_str_eq(told.message, "directory tmp is not an absolute path");
	what.uid++;
	told = look(&what, 20);
	ck_assert_int_eq(told.code, -EPERM);
	ck_assert_ptr_nonnull(strstr(told.message, "where the run was submitted"));
	what.user = (char *)"no-such-user";
	told = look(&what, 20);
	ck_assert_int_eq(told.code, -EPERM);
	ck_assert_ptr_nonnull(strstr(told.message, "no user 'no-such-user'"));
}
END_TEST

/* What dtrain-launch --preflight says of a request that is none. */
START_TEST(a_preflight_reads_a_request)
{
	static const struct {
		const char *input, *words;
	} cases[] = {
	    {"", "standard input"},
	    {"x", "standard input"},
	    {"[]", "an object is needed"},
	    {"{}", "missing"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *file = fixture_path(&f, "request"),
		                    *line = str_printf("exec %s/dtrain-launch --preflight <%s",
		                                       f.config->worker_dir, file);
		struct error err = ERROR_INIT;
		int written = file_write_atomic(file, cases[i].input, strlen(cases[i].input), 0600, &err);
		FILE *pipe = popen(line, "re");
		char text[1024];
		size_t n = fread(text, 1, sizeof(text) - 1, pipe);

		ck_ok(written, &err);
		text[n] = '\0';
		ck_assert_int_eq(pclose(pipe), 0);
		ck_assert_msg(strstr(text, cases[i].words) && strstr(text, "\"error\":-"), "%zu: %s", i,
		              text);
		ck_assert_int_eq(text[n - 1], '\n');
	}
}
END_TEST

/* Without it the run would fail at its first checkpoint, hours later. */
START_TEST(an_output_directory_has_to_be_writable)
{
	const struct passwd *user = getpwnam(geteuid() == 0 ? "nobody" : getpwuid(geteuid())->pw_name);
	static const struct {
		const char *dir, *at; /* at: NULL: it may be written to */
	} cases[] = {
	    {"open", NULL},
	    {"open/not/yet", NULL},
	    {"closed", "closed"},
	    {"closed/", "closed/"},
	    {"closed/not/yet", "closed"},
	    {"no-entry", "no-entry"},
	    {"../work/closed/x", "../work/closed"},
	    {"./open/../closed", "./open/../closed"},
	};
	_cleanup_free_ char *dir = unit_tmpdir(), *work = str_path_join(dir, "work");
	struct preflight_request preflight = {
	    .directory = work, .program = (char *)"/bin/true", .log_dir = dir};
	struct error err = ERROR_INIT;
	static const struct {
		const char *name;
		mode_t mode;
	} dirs[] = {
	    {"", 0755}, {"work", 0755}, {"work/open", 0777}, {"work/closed", 0555}, {"work/no-entry", 0666}};

	if (!user)
		return;
	preflight.user = user->pw_name;
	preflight.uid = user->pw_uid;
	for (size_t i = 0; i < ARRAY_SIZE(dirs); i++) {
		_cleanup_free_ char *path = str_path_join(dir, dirs[i].name);

		ck_ok(file_mkdirs(path, 0755, &err), &err);
		ck_assert_int_eq(chmod(path, dirs[i].mode), 0);
	}
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *at = cases[i].at ? str_path_join(work, cases[i].at) : NULL, *want = NULL;
		struct told told;

		preflight.output_dir = (char *)cases[i].dir;
		told = look(&preflight, 20);
		want = at ? str_printf("output.dir %s: %s cannot write to %s: Permission denied",
		                       cases[i].dir, user->pw_name, at)
		          : strdup("");
		ck_assert_msg(told.code == (at ? -EACCES : 0) && str_eq(told.message, want), "%s: %s, not %s",
		              cases[i].dir, told.message, want);
	}
	file_remove_tree(dir, NULL);
}
END_TEST

/* As ProtectSystem of a unit makes directories read-only for the service, and as a disk is for all. */
START_TEST(a_mount_that_is_read_only_for_the_service_alone_is_no_obstacle)
{
	const struct passwd *user = getpwnam("nobody");
	static const struct {
		const char *dir;
		bool own_mounts;
		int code;
	} cases[] = {{"mount", true, 0},
	             {"mount/not/yet", true, 0},
	             {"mount", false, -EROFS},
	             {"disk", true, -EROFS},
	             {"disk", false, -EROFS},
	             {"mount/closed", true, -EACCES},
	             {"mount/closed", false, -EACCES}};
	_cleanup_free_ char *dir = unit_tmpdir(), *mounted = str_path_join(dir, "mount"),
	                    *disk = str_path_join(dir, "disk"), *closed = str_path_join(mounted, "closed");
	struct preflight_request preflight = {
	    .directory = dir, .program = (char *)"/bin/true", .log_dir = dir};
	struct error err = ERROR_INIT;

	if (geteuid() != 0 || !user || unshare(CLONE_NEWNS) < 0 ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return;
	preflight.user = user->pw_name;
	preflight.uid = user->pw_uid;
	ck_ok(file_mkdirs(closed, 0755, &err), &err);
	ck_ok(file_mkdirs(disk, 0755, &err), &err);
	ck_assert_int_eq(chmod(dir, 0755) | chmod(mounted, 0777) | chmod(closed, 0555), 0);
	ck_assert_int_eq(mount(mounted, mounted, NULL, MS_BIND, NULL), 0);
	ck_assert_int_eq(mount(NULL, mounted, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL), 0);
	ck_assert_int_eq(mount("none", disk, "tmpfs", MS_RDONLY, "mode=0777"), 0);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct told told;

		preflight.own_mounts = cases[i].own_mounts;
		preflight.output_dir = (char *)cases[i].dir;
		preflight.offload_dir = strchr(cases[i].dir, '/') ? NULL : (char *)cases[i].dir;
		told = look(&preflight, 20);
		ck_assert_msg(told.code == cases[i].code, "%s, %d: %s", cases[i].dir, cases[i].own_mounts,
		              told.message);
	}
	umount(mounted);
	umount(disk);
	file_remove_tree(dir, NULL);
}
END_TEST

/* It has to be there, since a disk that is not mounted must not fill another one. */
START_TEST(an_offload_directory_has_to_be_writable)
{
	const struct passwd *user = getpwnam(geteuid() == 0 ? "nobody" : getpwuid(geteuid())->pw_name);
	static const struct {
		const char *dir, *want; /* want: NULL: it may be written to */
	} cases[] = {{"open", NULL},
	             {"closed", "cannot write to "},
	             {"not-yet", "not-yet: No such file or directory"},
	             {"file", "file is not a directory"}};
	_cleanup_free_ char *dir = unit_tmpdir(), *open = str_path_join(dir, "open"),
	                    *closed = str_path_join(dir, "closed"), *file = str_path_join(dir, "file");
	struct preflight_request preflight = {
	    .directory = dir, .program = (char *)"/bin/true", .log_dir = dir};
	struct error err = ERROR_INIT;

	if (!user)
		return;
	preflight.user = user->pw_name;
	preflight.uid = user->pw_uid;
	ck_ok(file_mkdirs(open, 0755, &err), &err);
	ck_ok(file_mkdirs(closed, 0755, &err), &err);
	ck_ok(file_write_atomic(file, "", 0, 0644, &err), &err);
	ck_assert_int_eq(chmod(dir, 0755) | chmod(open, 0777) | chmod(closed, 0555), 0);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct told told;

		preflight.offload_dir = (char *)cases[i].dir;
		told = look(&preflight, 20);
		if (!cases[i].want)
			ck_assert_msg(told.code == 0, "%s", told.message);
		else
			ck_assert_msg(told.code < 0 && str_starts(told.message, "parallel.offload_dir") &&
			                  strstr(told.message, cases[i].want),
			              "%s", told.message);
	}
	file_remove_tree(dir, NULL);
}
END_TEST

/* The ranks of a task of ours use it. */
START_TEST(the_socket_has_to_be_usable)
{
	const struct passwd *nobody = getpwnam("nobody");
	const struct group *group = getgrnam("daemon");
	_cleanup_free_ char *dir = unit_tmpdir(), *socket = str_path_join(dir, "socket");
	struct preflight_request preflight = {
	    .directory = dir, .program = (char *)"/bin/true", .log_dir = dir, .socket = socket};
	struct error err = ERROR_INIT;
	struct told told;

	if (geteuid() != 0 || !nobody || !group)
		return;
	preflight.user = nobody->pw_name;
	preflight.uid = nobody->pw_uid;
	ck_ok(file_write_atomic(socket, "", 0, 0660, &err), &err);
	ck_assert_int_eq(chmod(dir, 0755) | chown(socket, 0, group->gr_gid), 0);
	told = look(&preflight, 20);
	ck_assert_int_eq(told.code, -EACCES);
	ck_assert_str_eq(told.message,
	                 "nobody is not in group daemon here, which the ranks of native runs need: "
	                 "as root, adduser nobody daemon");
	ck_assert_int_eq(chmod(socket, 0666), 0);
	told = look(&preflight, 20);
	ck_assert_msg(told.code == 0, "%s", told.message);
	file_remove_tree(dir, NULL);
}
END_TEST

/* A model that does not exist, or that this user cannot read. */
START_TEST(a_model_has_to_be_readable)
{
	const struct passwd *user = getpwnam(geteuid() == 0 ? "nobody" : getpwuid(geteuid())->pw_name);
	_cleanup_free_ char *dir = unit_tmpdir(), *closed = str_path_join(dir, "closed"),
	                    *want = str_printf("model %s/nix: No such file or directory", dir),
	                    *unseen = str_printf("teacher %s/nix: No such file or directory", dir),
	                    *denied = str_printf("model %s: Permission denied", closed);
	struct preflight_request preflight = {
	    .directory = dir, .program = (char *)"/bin/true", .log_dir = dir};
	struct error err = ERROR_INIT;
	struct told told;

	if (!user)
		return;
	preflight.user = user->pw_name;
	preflight.uid = user->pw_uid;
	ck_assert_int_eq(chmod(dir, 0755), 0);
	ck_ok(file_mkdirs(closed, 0755, &err), &err);
	preflight.model = "closed";
	told = look(&preflight, 20);
	ck_assert_msg(told.code == 0, "%s", told.message);
	ck_assert_int_eq(chmod(closed, 0), 0);
	told = look(&preflight, 20);
	ck_assert_int_eq(told.code, -EACCES);
	ck_assert_str_eq(told.message, denied);
	preflight.model = "nix";
	told = look(&preflight, 20);
	ck_assert_int_eq(told.code, -ENOENT);
	ck_assert_str_eq(told.message, want);
	preflight.model = NULL;
	preflight.teacher = "nix";
	told = look(&preflight, 20);
	ck_assert_int_eq(told.code, -ENOENT);
	ck_assert_str_eq(told.message, unseen);
	ck_assert_int_eq(chmod(closed, 0700), 0);
	file_remove_tree(dir, NULL);
}
END_TEST

START_TEST(what_changes_during_a_preflight_counts)
{
	_cleanup_json_ json_t *first = fixture_shell(1, 1, ":"), *second = fixture_shell(2, 1, ":"),
	                      *older = NULL;
	_cleanup_free_ char *go = fixture_path(&f, "go"),
	                    *script = str_printf("until [ -e %s ]; do sleep 0.01; done", go);
	struct told drained = {0}, newer = {0}, stale = {0};
	struct error err = ERROR_INIT;

	fixture_launcher(&f, script);
	/* A slot is drained. */
	ck_ok(fixture_begin(&f, first, on_told, &drained, &err), &err);
	ck_ok(node_drain(f.node, 0, "a new fan", &err), &err);
	/* An older attempt is asked for. */
	older = json_deep_copy(second);
	json_object_set_new(second, "attempt", json_integer(2));
	json_object_set_new(json_array_get(json_object_get(second, "ranks"), 0), "slot", json_integer(1));
	ck_ok(fixture_begin(&f, second, on_told, &newer, &err), &err);
	ck_assert_int_eq(fixture_begin(&f, older, on_told, &stale, &err), -ESTALE);
	ck_assert_int_eq(drained.times + newer.times, 0);
	f.changes = 0;
	ck_ok(file_write_atomic(go, "", 0, 0644, &err), &err);
	while (!drained.times || !newer.times)
		fixture_turn(&f);
	ck_assert_int_eq(drained.code, -EBUSY);
	ck_assert_msg(strstr(drained.message, "a new fan"), "%s", drained.message);
	ck_assert_int_eq(newer.code, 0);
	ck_assert_int_gt(f.changes, 0); /* slot 0 is leased no more */
	fixture_await(&f, 2, "ended");
}
END_TEST

/* Neither what it is asked for from then on, on free slots, nor what was in its preflight. */
START_TEST(a_node_that_shuts_down_starts_nothing)
{
	_cleanup_json_ json_t *first = fixture_shell(1, 1, ":"), *later = fixture_shell(2, 1, ":");
	_cleanup_free_ char *go = fixture_path(&f, "go"),
	                    *script = str_printf("until [ -e %s ]; do sleep 0.01; done", go);
	struct error err = ERROR_INIT;
	struct told pending = {0};

	fixture_launcher(&f, script);
	json_object_set_new(json_array_get(json_object_get(later, "ranks"), 0), "slot", json_integer(1));
	ck_ok(fixture_begin(&f, first, on_told, &pending, &err), &err);
	ck_assert_double_eq(node_shut_down(f.node), 0);
	ck_assert_int_eq(fixture_start(&f, later, &err), -EBUSY);
	ck_assert_str_eq(err.message, "node n1 is shutting down");
	ck_ok(file_write_atomic(go, "", 0, 0644, &err), &err);
	while (!pending.times)
		fixture_turn(&f);
	ck_assert_int_eq(pending.code, -EBUSY);
	ck_assert_str_eq(pending.message, "node n1 is shutting down");
	ck_assert_int_eq(node_running(f.node), 0);
}
END_TEST

/* One of a native task, for a worker that is a shell script. */
static json_t *native_request(int node_rank, const char *output_dir)
{
	json_t *q = fixture_shell(1, 1, ":");

	set_config(q, "task", json_string("sft"));
	json_object_del(json_object_get(q, "config"), "command");
	set_config(q, "model", json_pack("{s:s}", "path", "/"));
	set_config(q, "data", json_pack("{s:s}", "path", "/etc/hostname"));
	set_config(q, "output", json_pack("{s:s}", "dir", output_dir));
	json_object_set_new(q, "node_rank", json_integer(node_rank));
	return q;
}

/* Rank 0 writes: on the other nodes the directory need not even be there. */
START_TEST(the_output_directory_is_checked_where_rank_0_is)
{
	_cleanup_free_ char *worker = fixture_path(&f, "libexec/dtrain-worker-cpu"), *log = NULL;
	_cleanup_json_ json_t *other = native_request(1, "/proc/nix"), *unknown = native_request(0, "/tmp"),
	                      *rank_0 = native_request(0, "/etc/hostname/x");
	struct error err = ERROR_INIT;

	fixture_launcher(&f, NULL);
	ck_ok(file_write_atomic(worker, "#!/bin/sh\necho $GLIBC_TUNABLES\n", 31, 0755, &err), &err);
	ck_assert_int_lt(fixture_start(&f, rank_0, &err), 0);
	ck_assert_msg(strstr(err.message, "output.dir"), "%s", err.message);
	set_config(unknown, "nix", json_integer(1));
	ck_fails(fixture_start(&f, unknown, &err), &err, "unknown key");
	ck_ok(fixture_start(&f, other, &err), &err);
	fixture_await(&f, 1, "ended");
	/* An estimate of memory counts on it. */
	log = fixture_log(&f, 1, 0);
	ck_assert_str_eq(log, "glibc.malloc.tcache_count=0\n");
}
END_TEST

/* All of the environment of a rank, a line each, and the rest of what dtrain-launch is told. */
START_TEST(a_native_rank_on_gpus_is_described)
{
	static const char want[] =
	    "PATH=/usr/local/bin:/usr/bin:/bin\nHOME=/home/ada\nUSER=ada\nLOGNAME=ada\nSHELL=/bin/zsh\n"
	    "LANG=de_DE.UTF-8\nTMPDIR=/s/tmp/7.4\nTORCH_NCCL_ASYNC_ERROR_HANDLING=1\n"
	    "GLIBC_TUNABLES=glibc.malloc.tcache_count=0\nUCX_TCP_PORT_RANGE=30000-30010\n"
	    "CUDA_VISIBLE_DEVICES=2,0\nCUDA_DEVICE_ORDER=PCI_BUS_ID\nDTRAIN_DEVICE=1\nDTRAIN_SLOT=0\n"
	    "DTRAIN_SLOTS=2,0\nOMP_NUM_THREADS=4\nRANK=5\nWORLD_SIZE=8\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\n"
	    "LOCAL_SIZE=2\nGROUP_RANK=1\nGROUP_WORLD_SIZE=4\nCROSS_RANK=1\nCROSS_SIZE=4\nROLE_RANK=5\n"
	    "ROLE_WORLD_SIZE=8\nTORCHELASTIC_RUN_ID=7\nTORCHELASTIC_RESTART_COUNT=3\n"
	    "TORCHELASTIC_MAX_RESTARTS=5\nDTRAIN_RUN_ID=7\nDTRAIN_ATTEMPT=4\nDTRAIN_CLUSTER=a1\n"
	    "DTRAIN_EPOCH=3\nDTRAIN_CHECKPOINT=500\nDTRAIN_CHECKPOINT_NODE=n9\nROLE_NAME=default\n"
	    "TORCHELASTIC_USE_AGENT_STORE=False\nTORCHELASTIC_ERROR_FILE=/s/tmp/7.4/error-5.json\n"
	    "MASTER_ADDR=10.0.0.1\nMASTER_PORT=1234\nDTRAIN_SOCKET=/r/sock\nDTRAIN_NODE=n2\n"
	    "DTRAIN_LEASE=/r/lease\nDTRAIN_CONFIG=/r/attempts/7.4/config.json\n";
	struct node_device list[] = {{.gpu = true, .index = 0, .threads = 4, .numa = 1},
	                             {.gpu = true, .index = 1, .threads = 4, .numa = 0},
	                             {.gpu = true, .index = 2, .threads = 4, .numa = -1}};
	const struct devices devices = {.list = list, .count = 3};
	const struct daemon_config config = {.state_dir = (char *)"/s",
	                                     .runtime_dir = (char *)"/r",
	                                     .worker_dir = (char *)"/w",
	                                     .socket = (char *)"/r/sock",
	                                     .port_low = 30000,
	                                     .port_high = 30010};
	const struct request_place place = {&config, "n2", "/r/attempts/7.4", "/l", &devices, false};
	int64_t groups[] = {100, 4711};
	const struct run_user user = {.change = true,
	                              .name = (char *)"ada",
	                              .home = (char *)"/home/ada",
	                              .shell = (char *)"/bin/zsh",
	                              .uid = 1001,
	                              .gid = 1002,
	                              .groups = groups,
	                              .group_count = 2};
	_cleanup_(launch_description_release) struct launch_description d = {0};
	_cleanup_(start_request_release) struct start_request start = {0};
	_cleanup_(request_freep) struct request *request = NULL;
	_cleanup_json_ json_t *q = native_request(1, "/out");
	_cleanup_strbuf_ struct strbuf text = {0};
	struct error err = ERROR_INIT;

	set_config(q, "resources", json_pack("{s:i, s:i}", "max_restarts", 3, "max_node_failures", 2));
	set_config(q, "umask", json_string("0027"));
	set_config(q, "directory", json_string("/work"));
	ck_assert_int_eq(json_object_update_new(
	                     q, json_pack("{s:i, s:i, s:i, s:i, s:i, s:s, s:i, s:s, s:i, s:i, s:s}", "run", 7,
	                                  "attempt", 4, "world_size", 8, "nodes", 4, "local_world_size", 2,
	                                  "master_addr", "10.0.0.1", "master_port", 1234, "cluster", "a1",
	                                  "epoch", 3, "checkpoint", 500, "checkpoint_node", "n9")),
	                 0);
	json_object_set_new(q, "ranks",
	                    json_pack("[{s:i, s:i, s:i}, {s:i, s:i, s:i}]", "rank", 4, "local_rank", 0,
	                              "slot", 2, "rank", 5, "local_rank", 1, "slot", 0));
	setenv("LANG", "de_DE.UTF-8", 1);
	ck_ok(start_request_decode(q, &start, &err), &err);
	ck_ok(request_new(&start, &request, &err), &err);
	ck_ok(request_describe_launch(request, &place, &user, &d, &err), &err);
	ck_assert_uint_eq(d.rank_count, 2);
	for (char **entry = d.ranks[1].environment; *entry; entry++)
		strbuf_addf(&text, "%s\n", *entry);
	ck_assert_str_eq(text.data, want);
	ck_assert_int_eq(d.ranks[1].rank, 5);
	ck_assert_int_eq(d.ranks[1].slot, 0);
	ck_assert_str_eq(d.ranks[1].log, "/l/rank-5.log");
	ck_assert_str_eq(d.ranks[1].error_file, "/s/tmp/7.4/error-5.json");
	ck_assert_int_eq(d.ranks[1].numa, 1);
	ck_assert_int_eq(d.ranks[0].rank, 4);
	ck_assert_int_eq(d.ranks[0].slot, 2);
	ck_assert_int_eq(d.ranks[0].numa, -1);
	ck_assert(d.switch_user && !d.core_files && !d.outlives_lease);
	ck_assert_int_eq(d.umask, 027);
	ck_assert_int_eq(d.uid, 1001);
	ck_assert_int_eq(d.gid, 1002);
	ck_assert_uint_eq(d.group_count, 2);
	ck_assert_int_eq(d.groups[0], 100);
	ck_assert_int_eq(d.groups[1], 4711);
	ck_assert_str_eq(d.user, "ada");
	ck_assert_str_eq(d.directory, "/work");
	ck_assert_str_eq(d.tmp_dir, "/s/tmp/7.4");
	ck_assert_str_eq(d.argv[0], "/w/dtrain-worker-cuda");
	ck_assert_ptr_null(d.argv[1]);
	ck_assert_str_eq(d.lease, "/r/lease");
	ck_assert_double_eq(d.grace, LAUNCH_DEFAULT_GRACE);
}
END_TEST

/* A later value of a variable takes the place of an earlier one, also where the program is looked for. */
START_TEST(the_last_value_of_a_variable_counts)
{
	_cleanup_json_ json_t *q = fixture_shell(1, 1, "echo $X; command -v true");
	_cleanup_free_ char *log = NULL;
	struct error err = ERROR_INIT;

	set_config(q, "environment", json_pack("[s,s,s,s]", "PATH=/nix", "X=1", "PATH=/usr/bin:/bin", "X=2"));
	ck_ok(fixture_start(&f, q, &err), &err);
	fixture_await(&f, 1, "ended");
	log = fixture_log(&f, 1, 0);
	ck_assert_msg(str_starts(log, "2\n"), "%s", log);
}
END_TEST

/* The directory of the user is on a file server that is down: the slot waits for it, the event loop does
 * not. */
START_TEST(a_preflight_that_hangs_holds_up_nothing)
{
	_cleanup_json_ json_t *hung = fixture_shell(1, 1, ":"), *busy = fixture_shell(2, 1, ":"),
	                      *devices = NULL;
	struct told first = {0}, again = {0}, gone = {0};
	struct error err = ERROR_INIT;

	fixture_launcher(&f, "echo '{\"step\":\"directory /nfs\"}'; echo $$ >$0.pid; exec sleep 1000");
	ck_ok(fixture_begin(&f, hung, on_told, &first, &err), &err);
	ck_ok(fixture_begin(&f, hung, on_told, &again, &err), &err);
	ck_assert_int_eq(node_free_slots(f.node), 1);
	devices = fixture_devices(&f);
	ck_assert_str_eq(json_get_string(json_array_get(devices, 0), "state", ""), "leased");
	ck_assert_int_eq(json_get_int(json_array_get(devices, 0), "run", 0), 1);
	ck_fails(fixture_begin(&f, busy, on_told, &gone, &err), &err, "slot 0 is leased to run 1, attempt 1");
	free(fixture_await_file(&f, "libexec/dtrain-launch.pid"));
	ck_assert_int_eq(first.times, 0);
	/* A stop ends it, and both callers get the result. */
	f.changes = 0;
	ck_ok(node_stop(f.node, 1, 1, 30, &err), &err);
	ck_assert_int_eq(first.times, 1);
	ck_assert_int_eq(first.code, -ECANCELED);
	ck_assert_int_eq(again.code, -ECANCELED);
	ck_assert_int_eq(node_free_slots(f.node), 2);
	ck_assert_int_eq(f.changes, 1);
	{
		_cleanup_free_ char *pid = fixture_await_file(&f, "libexec/dtrain-launch.pid");

		fixture_await_gone(&f, atoi(pid));
	}
	/* One that is under way when the service ends. */
	ck_ok(fixture_begin(&f, busy, on_told, &gone, &err), &err);
	fixture_restart(&f, false);
	ck_assert_int_eq(gone.code, -ESHUTDOWN);
	ck_assert_int_eq(gone.times, 1);
	ck_assert_int_eq(node_free_slots(f.node), 2);
}
END_TEST

START_TEST(a_preflight_has_a_deadline)
{
	static const char *const scripts[] = {
	    "echo '{\"step\":\"directory /nfs/home\"}'; exec sleep 1000",
	    "echo '{\"step\":\"directory /nfs/home\"}'; kill -SEGV $$",
	    "echo nonsense; exec sleep 1000",
	    "exit 0",
	};
	static const char *const words[] = {"directory /nfs/home: no answer within 3 s",
	                                    "dtrain-launch ended while it looked at directory /nfs/home",
	                                    "preflight",
	                                    "dtrain-launch ended while it looked at user nobody"};
	const struct preflight_request what = {.user = (char *)"nobody",
	                                       .uid = 65534,
	                                       .program = (char *)"true",
	                                       .path = (char *)"/bin",
	                                       .log_dir = (char *)"/"};

	for (size_t i = 0; i < ARRAY_SIZE(scripts); i++) {
		struct told told;

		fixture_launcher(&f, scripts[i]);
		told = look(&what, i == 0 ? 3 : 20);
		ck_assert_msg(strstr(told.message, words[i]), "%s", told.message);
		if (i == 0)
			ck_assert_int_eq(told.code, -ETIMEDOUT);
	}
}
END_TEST

/* A launcher that appends its pid to libexec/dtrain-launch.pids, then does `rest`. */
static char *counting_launcher(const char *rest)
{
	_cleanup_free_ char *script = str_printf("echo $$ >>$0.pids; %s", rest);
	struct error err = ERROR_INIT;

	fixture_launcher(&f, script);
	ck_ok(preflight_spare_create(f.event, &spare, &err), &err);
	return str_path_join(f.config->worker_dir, "dtrain-launch");
}

/* Waits until so many processes have been executed; returns the pid of the last. */
static pid_t await_executed(size_t count)
{
	for (;;) {
		_cleanup_free_ char *text = fixture_await_file(&f, "libexec/dtrain-launch.pids");
		pid_t last = 0;
		size_t n = 0;
		char *save;

		for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save), n++)
			last = atoi(line);
		ck_assert_uint_le(n, count);
		if (n == count)
			return last;
		fixture_turn(&f);
	}
}

static void await_ready(void)
{
	while (!preflight_spare_is_ready(spare))
		fixture_turn(&f);
}

/* Waits until so many processes have been executed and only the spare is left of them; returns its pid, which
 * is not always the last in the file: a request whose spare was killed has a process of its own meanwhile. */
static pid_t await_spare(size_t count)
{
	await_ready();
	await_executed(count);
	for (;; fixture_turn(&f)) {
		_cleanup_free_ char *text = fixture_await_file(&f, "libexec/dtrain-launch.pids");
		pid_t left = 0;
		int n = 0;
		char *save;

		for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
			if (kill(atoi(line), 0) == 0) {
				left = atoi(line);
				n++;
			}
		ck_assert_int_gt(n, 0);
		if (n == 1)
			return left;
	}
}

static const struct preflight_request fine = {
    .user = "root", .directory = "/", .program = "true", .path = "/usr/bin:/bin", .log_dir = "/"};

/* The request of the user who runs the tests. */
static struct preflight_request own_request(void)
{
	struct preflight_request what = fine;
	struct passwd *user = getpwuid(geteuid());

	what.user = user->pw_name;
	what.uid = user->pw_uid;
	return what;
}

START_TEST(a_preflight_takes_the_spare)
{
	_cleanup_free_ char *launcher = counting_launcher(":"), *fds = NULL;
	struct preflight_request what = own_request();
	pid_t first;

	preflight_spare_prepare(spare, launcher);
	await_ready();
	first = await_executed(1);
	/* What it has open is its own: the request's socket, the answer, the log; libraries are mapped. */
	fds = str_printf("test \"$(ls /proc/%d/fd | tr '\\n' ' ')\" = '0 1 2 '", (int)first);
	ck_assert_int_eq(system(fds), 0);
	ck_assert_int_eq(look(&what, 20).code, 0);
	ck_assert(preflight_spare_is_ready(spare));
	/* Nothing of the request stays with it. Its fork may have answered before it closes its own. */
	while (system(fds) != 0)
		usleep(1000);
	/* Two at once, one spare: each has a fork of it, and sees what is wrong. */
	{
		struct told told[2] = {0};
		struct preflight_call *call;
		struct error err = ERROR_INIT;

		what.program = "no-such-program";
		for (int i = 0; i < 2; i++)
			ck_ok(preflight_start(f.event, spare, launcher, &what, 20, on_looked, &told[i], &call,
			                      &err),
			      &err);
		while (!told[0].times || !told[1].times)
			fixture_turn(&f);
		ck_assert_int_eq(told[0].code, -ENOENT);
		ck_assert_int_eq(told[1].code, -ENOENT);
		ck_assert_str_eq(told[0].message, told[1].message);
	}
	ck_assert_int_eq(await_executed(1), first);
	/* It ends with its owner. */
	preflight_spare_destroy(spare);
	fixture_await_gone(&f, first);
}
END_TEST

START_TEST(a_dead_spare_is_as_none)
{
	_cleanup_free_ char *launcher = counting_launcher(":");
	struct preflight_request what = own_request();
	pid_t pid;

	/* Killed, and the event loop has not noticed. */
	preflight_spare_prepare(spare, launcher);
	ck_assert_int_eq(kill(await_spare(1), SIGKILL), 0);
	ck_assert_int_eq(look(&what, 20).code, 0);
	/* One for the request, and one in the place of the spare: now, or when it is asked for. */
	/* Killed with the request. */
	preflight_spare_prepare(spare, launcher);
	pid = await_spare(3);
	ck_assert_int_eq(kill(pid, SIGSTOP), 0);
	{
		struct told told = {0};
		struct preflight_call *call;
		struct error err = ERROR_INIT;

		ck_ok(preflight_start(f.event, spare, launcher, &what, 20, on_looked, &told, &call, &err),
		      &err);
		ck_assert_int_eq(kill(pid, SIGKILL), 0);
		while (!told.times)
			fixture_turn(&f);
		ck_assert_int_eq(told.code, 0);
	}
	/* One that dies unused is replaced. */
	preflight_spare_prepare(spare, launcher);
	ck_assert_int_eq(kill(await_spare(5), SIGKILL), 0);
	await_executed(6);
	await_spare(6);
	/* Another program has taken the launcher's place. */
	free(launcher);
	preflight_spare_destroy(spare);
	launcher = counting_launcher(":");
	preflight_spare_prepare(spare, launcher);
	await_ready();
	fixture_launcher(&f, "echo '{\"error\":-1,\"message\":\"the new one\"}'; exit 0");
	ck_assert_str_eq(look(&what, 20).message, "the new one");
	preflight_spare_destroy(spare);
}
END_TEST

/* One that hangs before it is ready is not waited for; one that hangs with a request has the deadline. */
START_TEST(a_hung_spare_holds_up_nothing)
{
	_cleanup_free_ char *launcher =
	    counting_launcher("[ -e $0.second ] || { echo hangs >$0.second; exec sleep 1000; }");
	struct preflight_request what = own_request();
	struct told told;
	pid_t pid;

	preflight_spare_prepare(spare, launcher);
	pid = await_executed(1);
	free(fixture_await_file(&f, "libexec/dtrain-launch.second")); /* it is the first that hangs */
	ck_assert_int_eq(look(&what, 20).code, 0);
	await_executed(2);
	ck_assert(!preflight_spare_is_ready(spare));
	preflight_spare_destroy(spare);
	fixture_await_gone(&f, pid);
	free(launcher);
	launcher = counting_launcher("echo '{\"ready\":true}'; exec sleep 1000");
	preflight_spare_prepare(spare, launcher);
	await_ready();
	pid = await_executed(3);
	told = look(&what, 0.5);
	ck_assert_int_eq(told.code, -ETIMEDOUT);
	fixture_await_gone(&f, pid);
	preflight_spare_destroy(spare);
}
END_TEST

START_TEST(no_two_leases_on_one_slot)
{
	_cleanup_json_ json_t *first = fixture_shell(1, 1, "exec sleep 1000");
	_cleanup_json_ json_t *second = fixture_shell(2, 2, "exec sleep 1000");
	_cleanup_json_ json_t *newer = fixture_request(1, 2, 1, (const char *const[]){"true", NULL});
	_cleanup_json_ json_t *devices = NULL;
	struct error err = ERROR_INIT;

	ck_ok(fixture_start(&f, first, &err), &err);
	ck_ok(fixture_start(&f, first, &err), &err); /* an answer was lost: the same request again */
	ck_assert_int_eq(fixture_start(&f, second, &err), -EBUSY);
	ck_assert_ptr_nonnull(strstr(err.message, "slot 0 is leased to run 1, attempt 1"));
	ck_assert_int_eq(fixture_start(&f, newer, &err), -EBUSY);
	ck_assert_int_eq(node_free_slots(f.node), 1);
	devices = fixture_devices(&f);
	ck_assert_str_eq(json_get_string(json_array_get(devices, 0), "state", ""), "leased");
	ck_assert_int_eq(json_get_int(json_array_get(devices, 0), "run", 0), 1);
	ck_assert_str_eq(json_get_string(json_array_get(devices, 1), "state", ""), "free");
	ck_ok(node_stop(f.node, 1, 1, 5, &err), &err);
	fixture_await(&f, 1, "ended");
	json_object_clear(f.reports);
	ck_ok(fixture_start(&f, newer, &err), &err);
	fixture_await(&f, 1, "ended");
	ck_ok(fixture_start(&f, first, &err), &err); /* and the answer to the first came very late */
	node_forget(f.node, 1, 1);
	ck_assert_int_eq(fixture_start(&f, first, &err), -ESTALE);
}
END_TEST

/* With one_per_node a rank has several slots: all are leased, also to a service that was started again. */
START_TEST(one_rank_leases_all_its_slots)
{
	_cleanup_free_ char *up = fixture_path(&f, "up");
	_cleanup_free_ char *script =
	    str_printf("echo $OMP_NUM_THREADS $DTRAIN_SLOTS; echo up >%s; exec sleep 1000", up);
	_cleanup_json_ json_t *q = fixture_shell(1, 1, script);
	_cleanup_json_ json_t *second = fixture_shell(2, 1, ":");
	_cleanup_free_ char *log = NULL, *want = NULL;
	json_t *rank = json_array_get(json_object_get(q, "ranks"), 0);
	json_t *other = json_array_get(json_object_get(second, "ranks"), 0);
	_cleanup_json_ json_t *device = NULL;
	struct error err = ERROR_INIT;

	json_object_set_new(rank, "slots", json_array());
	ck_fails(fixture_start(&f, q, &err), &err,
	         "start request: ranks[0].slots: a list of numbers is needed");
	json_object_set_new(rank, "slots", json_pack("[i, i]", 1, 1));
	ck_fails(fixture_start(&f, q, &err), &err, "start request: ranks: slot 1 twice");
	json_object_set_new(rank, "slots", json_pack("[i, i]", 0, 2));
	ck_fails(fixture_start(&f, q, &err), &err, "no slot 2; there are 2, counted from 0");
	json_object_set_new(rank, "slots", json_pack("[i, i]", 0, 1));
	ck_ok(fixture_start(&f, q, &err), &err);
	fixture_await(&f, 1, "running");
	free(fixture_await_file(&f, "up"));
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(node_free_slots(f.node), 0);
		json_object_set_new(other, "slot", json_integer(1));
		ck_fails(fixture_start(&f, second, &err), &err, "slot 1 is leased to run 1, attempt 1");
		if (i == 0)
			fixture_restart(&f, false);
	}
	ck_ok(node_stop(f.node, 1, 1, 5, &err), &err);
	fixture_await(&f, 1, "ended");
	ck_assert_int_eq(node_free_slots(f.node), 2);
	device = fixture_device(&f, 0);
	want = str_printf("%d 0,1\n", 2 * (int)json_get_int(device, "threads", 0));
	log = fixture_log(&f, 1, 0);
	ck_assert_str_eq(log, want);
}
END_TEST

START_TEST(the_environment_is_what_torchrun_gives)
{
	static const char *const want[] = {
	    "RANK=1",
	    "WORLD_SIZE=2",
	    "LOCAL_RANK=1",
	    "LOCAL_WORLD_SIZE=2",
	    "GROUP_RANK=0",
	    "GROUP_WORLD_SIZE=1",
	    "ROLE_NAME=default",
	    "ROLE_RANK=1",
	    "ROLE_WORLD_SIZE=2",
	    "MASTER_ADDR=127.0.0.1",
	    "TORCHELASTIC_RUN_ID=1",
	    "TORCHELASTIC_RESTART_COUNT=0",
	    "TORCHELASTIC_MAX_RESTARTS=3",
	    "TORCHELASTIC_USE_AGENT_STORE=False",
	    "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
	    "DTRAIN_RUN_ID=1",
	    "DTRAIN_ATTEMPT=1",
	    "DTRAIN_CLUSTER=a1",
	    "DTRAIN_EPOCH=3",
	    "DTRAIN_NODE=n1",
	    "DTRAIN_SLOT=1",
	    "DTRAIN_SLOTS=0,1",
	    "OMP_NUM_THREADS=3",
	    "HELLO=world=all",
	};
	_cleanup_json_ json_t *q = fixture_request(1, 1, 2, (const char *const[]){"env", NULL});
	_cleanup_free_ char *log = NULL;
	struct error err = ERROR_INIT;

	setenv("SECRET_OF_THE_SERVICE", "1", 1);
	json_object_set_new(q, "cluster", json_string("a1"));
	json_object_set_new(q, "epoch", json_integer(3));
	set_config(q, "environment",
	           json_pack("[s, s, s]", "HELLO=world=all", "RANK=17", "PATH=/bin:/usr/bin"));
	set_config(q, "resources", json_pack("{s:i, s:i}", "threads", 3, "max_restarts", 3));
	ck_ok(fixture_start(&f, q, &err), &err);
	fixture_await(&f, 1, "ended");
	log = fixture_log(&f, 1, 1);
	for (size_t i = 0; i < ARRAY_SIZE(want); i++) {
		_cleanup_free_ char *line = str_printf("\n%s\n", want[i]);

		ck_assert_msg(strstr(log, line) || str_starts(log, line + 1), "no %s in\n%s", want[i], log);
	}
	ck_assert_ptr_nonnull(strstr(log, "\nMASTER_PORT="));
	ck_assert(strstr(log, "\nPATH=/bin:/usr/bin\n") || str_starts(log, "PATH=/bin:/usr/bin\n"));
	ck_assert_ptr_null(strstr(log, "SECRET_OF_THE_SERVICE"));
	ck_assert_ptr_null(strstr(log, "RANK=17"));
}
END_TEST

/* The number of threads that the submitter's environment has counts, with and without resources.threads. */
START_TEST(the_users_number_of_threads_counts)
{
	_cleanup_json_ json_t *q =
	    fixture_request(1, 1, 2, (const char *const[]){"printenv", "OMP_NUM_THREADS", NULL});
	_cleanup_free_ char *log = NULL;
	struct error err = ERROR_INIT;

	set_config(q, "environment", json_pack("[s]", "OMP_NUM_THREADS=5"));
	if (_i)
		set_config(q, "resources", json_pack("{s:i}", "threads", 3));
	ck_ok(fixture_start(&f, q, &err), &err);
	fixture_await(&f, 1, "ended");
	log = fixture_log(&f, 1, 1);
	ck_assert_str_eq(log, "5\n");
}
END_TEST

/* Each variable that the node sets whatever the run says is one that a run may not name. */
START_TEST(what_the_node_sets_is_reserved)
{
	static const char *const open_names[] = {"PATH",
	                                         "HOME",
	                                         "USER",
	                                         "LOGNAME",
	                                         "SHELL",
	                                         "LANG",
	                                         "TORCH_NCCL_ASYNC_ERROR_HANDLING",
	                                         "PYTHONUNBUFFERED",
	                                         "TMPDIR",
	                                         "OMP_NUM_THREADS",
	                                         "CUDA_VISIBLE_DEVICES",
	                                         "CUDA_DEVICE_ORDER",
	                                         "UCX_TCP_PORT_RANGE"};
	_cleanup_json_ json_t *q = fixture_request(1, 1, 2, (const char *const[]){"env", NULL});
	_cleanup_free_ char *log = NULL;
	struct error err = ERROR_INIT;
	char *save, *line;
	int reserved = 0;

	ck_ok(fixture_start(&f, q, &err), &err);
	fixture_await(&f, 1, "ended");
	log = fixture_log(&f, 1, 1);
	for (line = strtok_r(log, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		bool is_open = false;

		for (size_t i = 0; i < ARRAY_SIZE(open_names); i++)
			is_open = is_open ||
			          (str_starts(line, open_names[i]) && line[strlen(open_names[i])] == '=');
		ck_assert_msg(is_open != run_variable_is_reserved(line), "%s", line);
		reserved += !is_open;
	}
	ck_assert_int_ge(reserved, 20);
}
END_TEST

/* Variables of the submitter are set for the rank only, not for the processes that start it. */
START_TEST(a_command_has_its_users_world)
{
	_cleanup_json_ json_t *q = fixture_shell(
	    1, 1,
	    "echo $PYTHONUNBUFFERED $VIRTUAL_ENV; umask; wc -c </proc/$PPID/environ; cat /proc/$PPID/comm");
	_cleanup_json_ json_t *own = fixture_shell(2, 1, "echo \"[$PYTHONUNBUFFERED]\"");
	_cleanup_free_ char *log = NULL, *second = NULL;
	struct error err = ERROR_INIT;

	set_config(q, "environment",
	           json_pack("[s, s, s]", "VIRTUAL_ENV=/venv", "LD_LIBRARY_PATH=/nowhere", "LD_BIND_NOW=1"));
	set_config(q, "umask", json_string("027"));
	ck_ok(fixture_start(&f, q, &err), &err);
	fixture_await(&f, 1, "ended");
	log = fixture_log(&f, 1, 0);
	ck_assert_str_eq(log, "1 /venv\n0027\n0\ndtrain-launch\n");
	set_config(own, "environment", json_pack("[s]", "PYTHONUNBUFFERED="));
	ck_ok(fixture_start(&f, own, &err), &err);
	fixture_await(&f, 2, "ended");
	second = fixture_log(&f, 2, 0);
	ck_assert_str_eq(second, "[]\n");
}
END_TEST

/* With a port_range, MASTER_PORT is in it, and each start gets another port. */
START_TEST(ports_come_from_the_range)
{
	_cleanup_json_ json_t *q = fixture_shell(1, 1, "echo $MASTER_PORT $UCX_TCP_PORT_RANGE");
	_cleanup_json_ json_t *own = fixture_shell(2, 1, "echo $UCX_TCP_PORT_RANGE");
	_cleanup_free_ char *log = NULL, *second = NULL;
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t len = sizeof address;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), low, port, last = 0;
	struct error err = ERROR_INIT;

	/* Three ports, the middle one of which is taken. */
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &len), 0);
	low = ntohs(address.sin_port) - 1;
	f.config->port_low = low;
	f.config->port_high = low + 2;
	for (int i = 0; i < 6; i++) {
		port = node_free_port(f.node, &err);
		if (port == -EADDRINUSE) /* others have the ports beside ours */
			break;
		ck_assert_msg(port == low || port == low + 2, "%d of %d to %d", port, low, low + 2);
		last = port;
	}
	if (last) {
		_cleanup_free_ char *want = str_printf("%d-%d\n", low, low + 2);

		ck_ok(fixture_start(&f, q, &err), &err);
		fixture_await(&f, 1, "ended");
		log = fixture_log(&f, 1, 0);
		ck_assert_int_ge(atoi(log), low);
		ck_assert_int_le(atoi(log), low + 2);
		ck_assert_int_ne(atoi(log), low + 1);
		ck_assert(str_ends(log, want));
	}
	set_config(own, "environment", json_pack("[s]", "UCX_TCP_PORT_RANGE=5-6"));
	json_object_set_new(own, "master_port", json_integer(1234));
	ck_ok(fixture_start(&f, own, &err), &err);
	fixture_await(&f, 2, "ended");
	second = fixture_log(&f, 2, 0);
	ck_assert_str_eq(second, "5-6\n");
	f.config->port_range = strdup("taken");
	f.config->port_low = f.config->port_high = low + 1;
	ck_assert_int_eq(node_free_port(f.node, &err), -EADDRINUSE);
	ck_assert_str_eq(err.message,
	                 "no port of port_range taken is free on node n1: Address already in use");
	close(fd);
}
END_TEST

START_TEST(ranks_stand_on_their_own)
{
	_cleanup_free_ char *log = NULL;
	struct error err = ERROR_INIT;
	_cleanup_json_ json_t *q = fixture_shell(
	    1, 1,
	    "readlink /proc/self/fd/0; [ -e /proc/$$/fd/3 ] || echo no more; echo sid $(($(cut -d' ' -f6 "
	    "/proc/$$/stat) == $$)); cat /proc/self/oom_score_adj; grep -c 'SigBlk.*0000000000000000' "
	    "/proc/self/status; umask");
	int own = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	/* The kernel takes the memory of a rank before that of the service, whatever the service has. */
	ck_ok(file_write_all(own, "500", 3, &err), &err);
	close(own);
	ck_ok(fixture_start(&f, q, &err), &err);
	fixture_await(&f, 1, "ended");
	log = fixture_log(&f, 1, 0);
	ck_assert_str_eq(log, "/dev/null\nno more\nsid 1\n0\n1\n0022\n");
}
END_TEST

/* What the service has as its standard input is not for dtrain-launch, nor is it for ranks. */
START_TEST(no_one_reads_the_input_of_the_service)
{
	_cleanup_free_ char *log = NULL;
	struct error err = ERROR_INIT;
	_cleanup_json_ json_t *q =
	    fixture_shell(1, 1, "cat /proc/$PPID/comm; readlink /proc/$PPID/fd/0; readlink /proc/$$/fd/0");
	int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);

	ck_assert_int_eq(dup2(zero, STDIN_FILENO), STDIN_FILENO);
	close(zero);
	ck_ok(fixture_start(&f, q, &err), &err);
	fixture_await(&f, 1, "ended");
	log = fixture_log(&f, 1, 0);
	ck_assert_str_eq(log, "dtrain-launch\n/dev/null\n/dev/null\n");
}
END_TEST

START_TEST(a_start_to_end_is_quick)
{
	double best = 1e9;

	for (int run = 1; run <= 20; run++) {
		_cleanup_json_ json_t *q = fixture_request(run, 1, 1, (const char *const[]){"true", NULL});
		double start = clock_monotonic();
		struct error err = ERROR_INIT;

		ck_ok(fixture_start(&f, q, &err), &err);
		fixture_await(&f, run, "ended");
		best = MIN(best, clock_monotonic() - start);
	}
	printf("node: start to end of `true`: %.2f ms\n", best * 1e3);
	ck_assert_double_lt(best, 0.25); /* sanitizers and a loaded machine included */
}
END_TEST

/* What it has left in its directory for temporary files is removed by then, and not given up after 10 s. */
START_TEST(an_end_does_not_wait_for_files_that_are_removed)
{
	double best = 1e9;

	for (int run = 1; run <= 3; run++) {
		_cleanup_json_ json_t *q =
		    fixture_shell(run, 1, "mkdir $TMPDIR/left && : >$TMPDIR/left/file");
		_cleanup_free_ char *name = str_printf("state/tmp/%d.1", run), *path = fixture_path(&f, name);
		double start = clock_monotonic();
		struct error err = ERROR_INIT;

		ck_ok(fixture_start(&f, q, &err), &err);
		fixture_await(&f, run, "ended");
		best = MIN(best, clock_monotonic() - start);
		ck_assert(!file_exists(path));
	}
	ck_assert_double_lt(best, 5);
}
END_TEST

START_TEST(visible_devices_filter_as_cuda_does)
{
	static const struct {
		const char *visible;
		int count, first;
	} cases[] = {{"", 0, 0},           {"2,0", 2, 2}, {"0,9,1", 1, 0},  {"GPU-b", 1, 1},
	             {"NoDevFiles", 0, 0}, {"1,1", 1, 1}, {" 3 , 2", 2, 3}, {"-1,0", 0, 0}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct node_device list[4] = {{0}};
		size_t count = 4;

		for (int k = 0; k < 4; k++) {
			list[k].index = k;
			snprintf(list[k].uuid, sizeof list[k].uuid, "GPU-%c000", 'a' + k);
		}
		devices_filter_visible(list, &count, cases[i].visible);
		ck_assert_msg((int)count == cases[i].count && (!count || list[0].index == cases[i].first),
		              "\"%s\": %zu", cases[i].visible, count);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("node_start");
	TCase *tc = tcase_create("start");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, wrong_requests_are_refused);
	tcase_add_test(tc, what_the_user_may_not_is_refused);
	tcase_add_test(tc, an_output_directory_that_is_a_file);
	tcase_add_test(tc, a_preflight_leaves_nothing_open);
	tcase_add_test(tc, a_preflight_looks_at_all_places);
	tcase_add_test(tc, a_preflight_knows_its_user);
	tcase_add_test(tc, a_preflight_reads_a_request);
	tcase_add_test(tc, an_output_directory_has_to_be_writable);
	tcase_add_test(tc, a_mount_that_is_read_only_for_the_service_alone_is_no_obstacle);
	tcase_add_test(tc, an_offload_directory_has_to_be_writable);
	tcase_add_test(tc, the_socket_has_to_be_usable);
	tcase_add_test(tc, a_model_has_to_be_readable);
	tcase_add_test(tc, what_changes_during_a_preflight_counts);
	tcase_add_test(tc, a_node_that_shuts_down_starts_nothing);
	tcase_add_test(tc, the_output_directory_is_checked_where_rank_0_is);
	tcase_add_test(tc, the_last_value_of_a_variable_counts);
	tcase_add_test(tc, a_native_rank_on_gpus_is_described);
	tcase_add_test(tc, a_preflight_that_hangs_holds_up_nothing);
	tcase_add_test(tc, a_preflight_has_a_deadline);
	tcase_add_test(tc, a_preflight_takes_the_spare);
	tcase_add_test(tc, a_dead_spare_is_as_none);
	tcase_add_test(tc, a_hung_spare_holds_up_nothing);
	tcase_add_test(tc, no_two_leases_on_one_slot);
	tcase_add_test(tc, one_rank_leases_all_its_slots);
	tcase_add_test(tc, the_environment_is_what_torchrun_gives);
	tcase_add_loop_test(tc, the_users_number_of_threads_counts, 0, 2);
	tcase_add_test(tc, what_the_node_sets_is_reserved);
	tcase_add_test(tc, a_command_has_its_users_world);
	tcase_add_test(tc, ports_come_from_the_range);
	tcase_add_test(tc, ranks_stand_on_their_own);
	tcase_add_test(tc, no_one_reads_the_input_of_the_service);
	tcase_add_test(tc, a_start_to_end_is_quick);
	tcase_add_test(tc, an_end_does_not_wait_for_files_that_are_removed);
	tcase_add_test(tc, visible_devices_filter_as_cuda_does);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
