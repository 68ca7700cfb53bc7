/* SPDX-License-Identifier: Apache-2.0 */
/* A service with scripted answers: fake_service.h. */
#include "fake_service.h"

#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "unit.h"

struct fake_service {
	pthread_t thread;
	int listen_fd;
	const struct fake_step *steps;
	size_t count, taken;
	char wrong[1024];
};

static int read_request(int fd, char *buf, size_t size)
{
	size_t n = 0, want = 0;
	char *end, *length;

	for (;;) {
		ssize_t r = recv(fd, buf + n, size - 1 - n, 0);

		if (r <= 0)
			return 0;
		n += r;
		buf[n] = '\0';
		end = strstr(buf, "\r\n\r\n");
		if (!end)
			continue;
		length = strcasestr(buf, "content-length:");
		want = (end + 4 - buf) + (length && length < end ? strtoul(length + 15, NULL, 10) : 0);
		if (n >= want)
			return 1;
	}
}

static void *serve(void *context)
{
	struct fake_service *fake = context;
	static const size_t size = 65536;
	_cleanup_free_ char *request = malloc(size);
	int fd = -1, held = -1;

	while (fake->taken < fake->count) {
		const struct fake_step *step = &fake->steps[fake->taken];

		if (fd < 0)
			fd = accept(fake->listen_fd, NULL, NULL);
		if (fd < 0)
			return NULL;
		if (!read_request(fd, request, size)) {
			close(fd);
			fd = -1;
			continue;
		}
		if (strncmp(request, step->request, strlen(step->request)) ||
		    (step->body && !strstr(request, step->body))) {
			snprintf(fake->wrong, sizeof fake->wrong, "step %zu: got %.800s", fake->taken,
			         request);
			break;
		}
		if (step->hang_up == FAKE_LATE)
			usleep(50000);
		if (send(fd, step->answer, strlen(step->answer), MSG_NOSIGNAL) < 0)
			break;
		__atomic_fetch_add(&fake->taken, 1, __ATOMIC_SEQ_CST);
		if (step->hang_up == FAKE_HOLD && fake->taken < fake->count) {
			held = fd;
			fd = -1;
			continue;
		}
		while (step->hang_up == FAKE_HOLD && recv(fd, request, size, 0) > 0)
			;
		if (step->hang_up) {
			close(fd);
			fd = -1;
		}
	}
	if (fd >= 0)
		close(fd);
	if (held >= 0) {
		while (!fake->wrong[0] && recv(held, request, size, 0) > 0)
			;
		close(held);
	}
	return NULL;
}

struct fake_service *fake_service_start(const char *socket_path, const struct fake_step *steps, size_t count)
{
	struct fake_service *fake = calloc(1, sizeof *fake);
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	fake->steps = steps;
	fake->count = count;
	snprintf(address.sun_path, sizeof address.sun_path, "%s", socket_path);
	fake->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(fake->listen_fd, (struct sockaddr *)&address, sizeof address), 0);
	ck_assert_int_eq(listen(fake->listen_fd, 8), 0);
	ck_assert_int_eq(pthread_create(&fake->thread, NULL, serve, fake), 0);
	return fake;
}

void fake_service_stop(struct fake_service *fake)
{
	size_t taken, count;
	char wrong[1024];

	shutdown(fake->listen_fd, SHUT_RDWR); /* ends the accept call */
	pthread_join(fake->thread, NULL);
	close(fake->listen_fd);
	taken = fake->taken;
	count = fake->count;
	memcpy(wrong, fake->wrong, sizeof wrong);
	free(fake);
	ck_assert_msg(!wrong[0], "%s", wrong);
	ck_assert_msg(taken == count, "%zu of %zu steps were taken", taken, count);
}

size_t fake_service_taken(struct fake_service *fake)
{
	return __atomic_load_n(&fake->taken, __ATOMIC_SEQ_CST);
}
