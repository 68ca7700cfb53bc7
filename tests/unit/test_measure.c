/* SPDX-License-Identifier: Apache-2.0 */
/* The rates that a worker measures: which sets of ranks and threads, under which load, and what is printed.
 * The device, the communicator and the measurements are stand-ins. */
#include <fcntl.h>
#include <glob.h>
#include <sched.h>

#include "base/json.h"
#include "base/str.h"
#include "engine/device/sizes.h"
#include "engine/train/measure.h"
#include "unit.h"
#include "worker/tasks.h"

/* ---- what measure.c calls ---- */

static struct {
	pid_t pid;      /* that measures */
	int processors; /* of the machine */
	int64_t memory; /* bytes of the machine */
	bool gpu;
	const char *fails;   /* what fails */
	int allocation_left; /* of this process, until one fails; 0: none does */
} machine;

struct device {
	int threads;
	char text[40];
};

int __wrap_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set);
int __wrap_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
	CPU_ZERO_S(size, set);
	for (int i = 0; i < machine.processors; i++)
		CPU_SET_S(i, size, set);
	return machine.processors > 0 ? 0 : -1;
}

long __real_sysconf(int name);
long __wrap_sysconf(int name);
long __wrap_sysconf(int name)
{
	return name == _SC_PHYS_PAGES ? machine.memory / __real_sysconf(_SC_PAGESIZE) : __real_sysconf(name);
}

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size)
{
	if (machine.allocation_left == 0 || --machine.allocation_left > 0)
		return __real_calloc(n, size);
	errno = ENOMEM;
	return NULL;
}

char *__real_mkdtemp(char *name);
char *__wrap_mkdtemp(char *name);
char *__wrap_mkdtemp(char *name)
{
	errno = ENOSPC;
	return str_eq(machine.fails, "directory") ? NULL : __real_mkdtemp(name);
}

static bool measures(void)
{
	return getpid() == machine.pid;
}

static int refuse(const char *what, struct error *err)
{
	return str_eq(machine.fails, what) ? error_set(err, -EIO, "%s has failed", what) : 0;
}

int device_create(const struct device_options *options, struct device **out, struct error *err)
{
	/* The load begins once the links are measured. */
	int r = measures() ? refuse("device", err) : file_exists("linked") ? refuse("other device", err) : 0;

	if (r < 0)
		return r;
	if (!measures() && file_exists("linked")) {
		_cleanup_free_ char *name = str_printf("load-%d", getpid());

		close(open(name, O_CREAT | O_RDONLY, 0600));
	}
	*out = calloc(1, sizeof(**out));
	(*out)->threads = options->threads;
	snprintf((*out)->text, sizeof((*out)->text), machine.gpu ? "gpu" : "cpu: %d threads",
	         options->threads);
	return 0;
}

void device_destroy(struct device *dev)
{
	free(dev);
}

const char *device_describe(const struct device *dev)
{
	return dev->text;
}

void device_get_sizing(const struct device *dev, struct device_sizing *out, int64_t *memory)
{
	*out = (struct device_sizing){.engine = machine.gpu ? DEVICE_ENGINE_CUDA : DEVICE_ENGINE_CPU};
}

/* Of the load: turns until it is killed. */
int rates_measure(struct device *dev, struct rate_set *out, struct error *err)
{
	if (!measures()) {
		ck_assert(out->threads == 1 && out->ranks == 1 && dev->threads == 1);
		usleep(1000);
		return 0;
	}
	out->has[DTYPE_F32] = true;
	for (size_t i = 0; i < RATE_LENGTHS * RATE_LENGTHS * RATE_LENGTHS; i++)
		for (int k = 0; k < RATE_PRODUCTS; k++)
			out->product[DTYPE_F32][k][i] = 1e9 * dev->threads;
	for (size_t i = 0; i < RATE_WIDTHS * RATE_LENGTHS; i++)
		out->attention[DTYPE_F32][0][i] = out->attention[DTYPE_F32][1][i] = 1e9;
	for (size_t k = 0; k < RATE_OPERATIONS; k++)
		for (size_t i = 0; i < RATE_LENGTHS; i++)
			out->operation[DTYPE_F32][k][i] = 1e9;
	return refuse("measurement", err);
}

struct comm {
	int rank;
};

/* The ranks find each other by the store. */
int comm_create(struct device *dev, const struct comm_options *o, struct comm **out, struct error *err)
{
	_cleanup_free_ void *data = NULL;
	size_t len = 0;
	int r;

	ck_assert(o->world_size == 2 && o->timeout_s == 60 && str_eq(o->group, "measure") &&
	          dev->threads == 1);
	if ((r = o->store->put(o->store->context, o->rank ? "one" : "zero", "x", 1, err)) < 0 ||
	    (r = o->store->get(o->store->context, o->rank ? "zero" : "one", 20000, &data, &len, err)) < 0)
		return r;
	*out = calloc(1, sizeof(**out));
	(*out)->rank = o->rank;
	return 0;
}

void comm_destroy(struct comm *comm)
{
	free(comm);
}

int rates_measure_links(struct device *dev, struct comm *comm, double gather[RATE_LENGTHS],
                        double reduce[RATE_LENGTHS], struct error *err)
{
	ck_assert_int_eq(comm->rank, measures() ? 0 : 1);
	for (size_t i = 0; i < RATE_LENGTHS; i++) {
		gather[i] = 100 + (double)i;
		reduce[i] = 200 + (double)i;
	}
	if (measures())
		close(open("linked", O_CREAT | O_RDONLY, 0600));
	if (str_eq(machine.fails, "hang") && !measures())
		pause(); /* until it is killed */
	return str_eq(machine.fails, "hang") ? error_set(err, -EIO, "a peer hangs") : refuse("link", err);
}

/* ---- tests ---- */

static char *dir, *errors;
static json_t *printed;
static size_t directories;

static size_t count(const char *pattern)
{
	glob_t found;
	size_t n;

	n = glob(pattern, 0, NULL, &found) == 0 ? found.gl_pathc : 0;
	globfree(&found);
	return n;
}

static void setup(void)
{
	dir = unit_tmpdir();
	ck_assert_int_eq(chdir(dir), 0);
	machine.pid = getpid();
	machine.processors = 3;
	machine.memory = (int64_t)64 << 30;
	directories = count("/tmp/dtrain-measure-*");
}

static void teardown(void)
{
	json_decref(printed);
	free(errors);
	ck_assert_int_eq(chdir("/"), 0);
	file_remove_tree(dir, NULL);
	free(dir);
}

static int measure(const char *output)
{
	int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO), status;
	int to = open(output, O_WRONLY | O_CREAT | O_TRUNC, 0600),
	    told = open("errors", O_WRONLY | O_CREAT | O_TRUNC, 0600);

	json_decref(printed);
	printed = NULL;
	free(errors);
	fflush(NULL);
	dup2(to, STDOUT_FILENO);
	dup2(told, STDERR_FILENO);
	status = measure_main();
	fflush(NULL);
	dup2(out, STDOUT_FILENO);
	dup2(err, STDERR_FILENO);
	clearerr(stdout);
	close(out);
	close(err);
	close(to);
	close(told);
	ck_assert_int_eq(file_read("errors", 0, &errors, NULL, NULL), 0);
	if (status == 0)
		printed = json_load_file(output, 0, NULL);
	/* Nothing is left running. */
	ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
	return status;
}

/* "THREADS*RANKS …" */
static void expect_sets(const char *sets)
{
	_cleanup_strbuf_ struct strbuf b = {0};
	const json_t *set;
	size_t i;

	ck_assert_int_eq(measure("rates"), 0);
	json_array_foreach(json_object_get(printed, "sets"), i, set)
	    strbuf_addf(&b, "%lld*%lld ", (long long)json_get_int(set, "threads", -1),
	                (long long)json_get_int(set, "ranks", -1));
	ck_assert_str_eq(b.data, sets);
}

START_TEST(ranks_and_threads_of_a_machine)
{
	expect_sets("1*1 1*3 3*1 ");
	/* The processes that measure at the same time as this one. */
	ck_assert_uint_eq(count("load-*"), 2);
	ck_assert_str_eq(json_get_string(printed, "device", ""), "cpu: 3 threads");
	ck_assert_str_eq(json_get_string(printed, "version", ""), DTRAIN_VERSION);
	ck_assert_ptr_nonnull(strstr(errors, "measuring collectives of 2 ranks\n"));
	ck_assert_ptr_nonnull(
	    strstr(errors, "measuring cpu: 1 threads\nmeasuring cpu: 1 threads, 3 ranks at the same time\n"
	                   "measuring cpu: 3 threads\n"));
	for (size_t i = 0; i < RATE_LENGTHS; i++) {
		ck_assert_double_eq(json_number_value(json_array_get(json_object_get(printed, "gather"), i)),
		                    100 + (double)i);
		ck_assert_double_eq(json_number_value(json_array_get(json_object_get(printed, "reduce"), i)),
		                    200 + (double)i);
	}
	ck_assert_uint_eq(count("/tmp/dtrain-measure-*"), directories);
}
END_TEST

/* Half of the memory, and half a GiB for each. */
START_TEST(as_many_ranks_as_the_memory_has_room_for)
{
	machine.memory = (int64_t)2 << 30;
	expect_sets("1*1 1*2 3*1 ");
	machine.memory = ((int64_t)2 << 30) - (1 << 20);
	expect_sets("1*1 3*1 ");
	machine.processors = 1;
	expect_sets("1*1 ");
	machine.processors = 0;
	expect_sets("1*1 ");
	machine.processors = 2;
	machine.memory = (int64_t)3 << 30;
	expect_sets("1*1 1*2 2*1 ");
}
END_TEST

START_TEST(a_gpu_has_one_set)
{
	machine.gpu = true;
	expect_sets("0*1 ");
	ck_assert_str_eq(json_get_string(printed, "device", ""), "gpu");
	ck_assert(json_number_value(json_array_get(json_object_get(printed, "gather"), 0)) == 0);
}
END_TEST

START_TEST(what_fails_is_an_error)
{
	static const struct {
		const char *fails, *words;
	} cases[] = {
	    {"device", "error: device has failed\n"},
	    {"measurement", "error: measurement has failed\n"},
	    {"link", "error: link has failed\n"},
	    {"hang", "error: a peer hangs\n"},
	    {"directory", "error: cannot make a directory in /tmp: No space left on device\n"},
	    {"other device", "error: a process that loads another processor: other device has failed\n"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		machine.fails = cases[i].fails;
		unlink("linked");
		ck_assert_int_eq(measure("rates"), 1);
		ck_assert_msg(str_ends(errors, cases[i].words), "%s: %s", cases[i].fails, errors);
		ck_assert_uint_eq(count("/tmp/dtrain-measure-*"), directories);
	}
	machine.fails = NULL;
	/* Of the rates, the processes that load the others, and the rates of the second rank. */
	for (int n = 1; n <= 3; n++) {
		machine.allocation_left = n;
		ck_assert_int_eq(measure("rates"), 1);
		ck_assert_str_eq(errors, "error: out of memory\n");
		ck_assert_int_eq(machine.allocation_left, 0);
		ck_assert_uint_eq(count("/tmp/dtrain-measure-*"), directories);
	}
	ck_assert_int_eq(measure("/dev/full"), 1);
	ck_assert_msg(str_ends(errors, "error: cannot write the rates: No space left on device\n"), "%s",
	              errors);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("measure");
	TCase *t = tcase_create("measure");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 30);
	tcase_add_test(t, ranks_and_threads_of_a_machine);
	tcase_add_test(t, as_many_ranks_as_the_memory_has_room_for);
	tcase_add_test(t, a_gpu_has_one_set);
	tcase_add_test(t, what_fails_is_an_error);
	suite_add_tcase(suite, t);
	return unit_run(suite);
}
