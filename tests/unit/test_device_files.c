/* SPDX-License-Identifier: Apache-2.0 */
/* Which device files a run may open, in a directory with links to /dev/null in place of the devices. */
#include "unit.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"
#include "node/gpu/device_files.h"

static char *root;

static void make_device(const char *name)
{
	_cleanup_free_ char *path = str_printf("%s%s", root, name);

	ck_assert_int_eq(symlink("/dev/null", path), 0);
}

static void make_file(const char *name, const char *text)
{
	_cleanup_free_ char *path = str_printf("%s%s", root, name);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, text, strlen(text), 0644, &err), &err);
}

static void make_directory(const char *name)
{
	_cleanup_free_ char *path = str_printf("%s%s", root, name);
	struct error err = ERROR_INIT;

	ck_ok(file_mkdirs(path, 0755, &err), &err);
}

static bool has(char *const *list, const char *name)
{
	while (*list && !str_eq(*list, name))
		list++;
	return *list;
}

/* The device in slot 0 may open these files and no others. */
static void check(const struct node_device *device, char *const *more, const char *const *expected)
{
	const struct devices devices = {.list = (struct node_device *)device, .count = 1};
	char **files = device_files(root, &devices, (const int[]){0}, 1, more);
	size_t n = 0;

	ck_assert_ptr_nonnull(files);
	for (; expected[n]; n++)
		ck_assert_msg(has(files, expected[n]), "%s is missing", expected[n]);
	for (size_t i = 0; files[i]; i++)
		ck_assert_msg(i < n, "there are more files than expected, such as %s", files[i]);
	str_list_free(files);
}

START_TEST(a_gpu_has_its_own_file)
{
	check(&(struct node_device){.gpu = true, .minor = 1}, NULL,
	      (const char *const[]){"/dev/nvidia1", "/dev/nvidiactl", "/dev/fuse", NULL});
	/* Where the driver does not say which it is, all of them. */
	check(&(struct node_device){.gpu = true, .minor = -1}, NULL,
	      (const char *const[]){"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/fuse", NULL});
	check(&(struct node_device){.minor = -1}, NULL, (const char *const[]){"/dev/fuse", NULL});
}
END_TEST

START_TEST(a_mig_device_has_its_capabilities)
{
	struct node_device device = {
	    .gpu = true, .mig = true, .minor = 0, .gpu_instance = 2, .compute_instance = 0};

	check(&device, NULL,
	      (const char *const[]){"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21",
	                            "/dev/nvidia-caps/nvidia-cap22", "/dev/nvidiactl", "/dev/fuse", NULL});
	device.minor = -1;
	check(&device, NULL,
	      (const char *const[]){"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap1",
	                            "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22",
	                            "/dev/nvidiactl", "/dev/fuse", NULL});
}
END_TEST

/* systemd refuses a unit with a file that is no device. */
START_TEST(allow_devices_adds_devices_alone)
{
	char *more[] = {(char *)"/dev/k*", (char *)"/dev/shm/*", NULL},
	     *nothing[] = {(char *)"/dev/x*", NULL};
	_cleanup_free_ char *unmatched = NULL;

	check(&(struct node_device){.minor = -1}, more, (const char *const[]){"/dev/kvm", "/dev/fuse", NULL});
	ck_assert_ptr_null(device_files_unmatched(root, (char *[]){(char *)"/dev/k*", NULL}));
	unmatched = device_files_unmatched(root, more);
	ck_assert_str_eq(unmatched, "/dev/shm/*");
	free(unmatched);
	unmatched = device_files_unmatched(root, nothing);
	ck_assert_str_eq(unmatched, "/dev/x*");
}
END_TEST

static void setup(void)
{
	static const char *const devices[] = {"/dev/nvidia0",
	                                      "/dev/nvidia1",
	                                      "/dev/nvidiactl",
	                                      "/dev/fuse",
	                                      "/dev/kvm",
	                                      "/dev/nvidia-caps/nvidia-cap1",
	                                      "/dev/nvidia-caps/nvidia-cap21",
	                                      "/dev/nvidia-caps/nvidia-cap22"};

	root = unit_tmpdir();
	make_directory("/dev/nvidia-caps");
	make_directory("/dev/shm");
	make_file("/dev/shm/file", "");
	for (size_t i = 0; i < ARRAY_SIZE(devices); i++)
		make_device(devices[i]);
	make_directory("/proc/driver/nvidia/capabilities/gpu0/mig/gi2/ci0");
	make_file("/proc/driver/nvidia/capabilities/gpu0/mig/gi2/access", "DeviceFileMinor: 21\n");
	make_file("/proc/driver/nvidia/capabilities/gpu0/mig/gi2/ci0/access", "DeviceFileMinor: 22\n");
}

static void teardown(void)
{
	file_remove_tree(root, NULL);
	free(root);
}

int main(void)
{
	Suite *suite = suite_create("device_files");
	TCase *tc = tcase_create("device_files");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, a_gpu_has_its_own_file);
	tcase_add_test(tc, a_mig_device_has_its_capabilities);
	tcase_add_test(tc, allow_devices_adds_devices_alone);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
