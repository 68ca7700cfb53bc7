/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes a file in the background. io_uring is driven by its two system calls (io_uring(7)), which
 * take less code here than a library would take in each program that links the engine. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine/shard/disk_queue.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"

/* A disk is at its fastest with several operations of this size under way. */
enum { ENTRIES = 128, CHUNK = 1 << 20 };

struct operation {
	bool used;
	enum disk_direction direction;
	int tag;
	int64_t offset;
	struct iovec rest;
};

struct ring {
	int fd; /* -1: none */
	void *sq, *cq;
	size_t sq_bytes, cq_bytes;
	struct io_uring_sqe *sqes;
	unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
	struct io_uring_cqe *cqes;
	unsigned queued; /* entries that the kernel has not been told of */
};

struct disk_queue {
	char *directory;
	int file;
	bool direct;
	struct ring ring;
	struct operation operation[ENTRIES];
	int pending[DISK_QUEUE_TAGS];
	int failed; /* the first error, a negative errno */
	enum disk_direction failed_direction;
};

/* ---- the file ---- */

/* Without a name from the start, or, where the file system has no such files, from the moment after. */
static int open_file(const char *directory, int flags)
{
	char path[4096];
	int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);

	if (fd >= 0)
		return fd;
	if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)
		return -errno;
	if (snprintf(path, sizeof(path), "%s/.dtrain-offload-XXXXXX", directory) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	fd = mkostemp(path, O_CLOEXEC | flags);
	if (fd < 0)
		return -errno;
	(void)unlink(path);
	return fd;
}

static int reserve(struct disk_queue *q, int64_t bytes, struct error *err)
{
	char needs[24], has[24];
	struct statvfs disk = {0};
	int r = 0;

	(void)fstatvfs(q->file, &disk);
	if (fallocate(q->file, 0, 0, bytes) < 0)
		r = -errno;
	/* A file system that cannot reserve: at least it is to be large enough now. */
	if (r == -EOPNOTSUPP) {
		r = ftruncate(q->file, bytes) < 0 ? -errno : 0;
		if (r == 0 && disk.f_blocks > 0 && (uint64_t)disk.f_bavail * disk.f_frsize < (uint64_t)bytes)
			r = -ENOSPC;
	}
	if (r == 0)
		return 0;
	return error_errno(
	    err, r,
	    "parallel.offload_dir %s: cannot reserve %s for the optimizer's state, of %s that are free",
	    q->directory, str_bytes(needs, sizeof(needs), (size_t)bytes),
	    str_bytes(has, sizeof(has), (size_t)disk.f_bavail * disk.f_frsize));
}

/* ---- the ring ---- */

static void ring_close(struct ring *r)
{
	if (r->sqes)
		(void)munmap(r->sqes, ENTRIES * sizeof(*r->sqes));
	if (r->cq)
		(void)munmap(r->cq, r->cq_bytes);
	if (r->sq)
		(void)munmap(r->sq, r->sq_bytes);
	if (r->fd >= 0)
		close(r->fd);
	*r = (struct ring){.fd = -1};
}

static void *map(int fd, size_t bytes, off_t what)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, what);

	return p == MAP_FAILED ? NULL : p;
}

static unsigned *at(void *base, unsigned offset)
{
	return (unsigned *)(void *)((char *)base + offset);
}

/* False: this kernel, or who may call it here, has none. */
static bool ring_open(struct ring *r)
{
	struct io_uring_params p = {0};

	*r = (struct ring){.fd = (int)syscall(__NR_io_uring_setup, ENTRIES, &p)};
	if (r->fd < 0)
		return false;
	r->sq_bytes = p.sq_off.array + p.sq_entries * sizeof(unsigned);
	r->cq_bytes = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
	r->sq = map(r->fd, r->sq_bytes, IORING_OFF_SQ_RING);
	r->cq = map(r->fd, r->cq_bytes, IORING_OFF_CQ_RING);
	r->sqes = map(r->fd, ENTRIES * sizeof(*r->sqes), IORING_OFF_SQES);
	if (!r->sq || !r->cq || !r->sqes) {
		ring_close(r);
		return false;
	}
	r->sq_tail = at(r->sq, p.sq_off.tail);
	r->sq_mask = at(r->sq, p.sq_off.ring_mask);
	r->sq_array = at(r->sq, p.sq_off.array);
	r->cq_head = at(r->cq, p.cq_off.head);
	r->cq_tail = at(r->cq, p.cq_off.tail);
	r->cq_mask = at(r->cq, p.cq_off.ring_mask);
	r->cqes = (struct io_uring_cqe *)(void *)at(r->cq, p.cq_off.cqes);
	return true;
}

/* There is room: no more operations are under way than there are entries. */
static void ring_push(struct disk_queue *q, int index)
{
	struct operation *o = &q->operation[index];
	struct ring *r = &q->ring;
	unsigned tail = *r->sq_tail, place = tail & *r->sq_mask;

	r->sqes[place] =
	    (struct io_uring_sqe){.opcode = o->direction == DISK_READ ? IORING_OP_READV : IORING_OP_WRITEV,
	                          .fd = q->file,
	                          .off = (uint64_t)o->offset,
	                          .addr = (uint64_t)(uintptr_t)&o->rest,
	                          .len = 1,
	                          .user_data = (uint64_t)index};
	r->sq_array[place] = place;
	__atomic_store_n(r->sq_tail, tail + 1, __ATOMIC_RELEASE);
	r->queued++;
}

/* ---- operations ---- */

static void fail(struct disk_queue *q, int code, enum disk_direction direction)
{
	if (q->failed)
		return;
	q->failed = code;
	q->failed_direction = direction;
}

/* The result of an operation, or of a part of it. Returns whether it has ended. */
static bool advance(struct disk_queue *q, struct operation *o, ssize_t result)
{
	if (result == -EINTR || result == -EAGAIN)
		return false;
	if (result <= 0) {
		fail(q, result < 0 ? (int)result : -EIO, o->direction);
		return true;
	}
	o->offset += result;
	o->rest.iov_base = (char *)o->rest.iov_base + result;
	o->rest.iov_len -= (size_t)result;
	return o->rest.iov_len == 0;
}

static void reap(struct disk_queue *q)
{
	struct ring *r = &q->ring;
	unsigned head = *r->cq_head;

	while (head != __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE)) {
		struct io_uring_cqe *c = &r->cqes[head++ & *r->cq_mask];
		int index = (int)c->user_data;
		struct operation *o = &q->operation[index];
		bool ended = advance(q, o, c->res);

		__atomic_store_n(r->cq_head, head, __ATOMIC_RELEASE);
		if (!ended) {
			ring_push(q, index);
			continue;
		}
		o->used = false;
		q->pending[o->tag]--;
	}
}

/* Tells the kernel of what is queued, and waits until `least` operations have ended. */
static int enter(struct disk_queue *q, unsigned least)
{
	struct ring *r = &q->ring;
	long n = syscall(__NR_io_uring_enter, r->fd, r->queued, least, least ? IORING_ENTER_GETEVENTS : 0,
	                 NULL, 0);

	if (n < 0 && errno != EINTR && errno != EAGAIN && errno != EBUSY)
		return -errno;
	r->queued -= n > 0 ? (unsigned)n : 0;
	reap(q);
	return 0;
}

static int result_of(const struct disk_queue *q, struct error *err)
{
	if (!q->failed)
		return 0;
	return error_errno(err, q->failed, "parallel.offload_dir %s: cannot %s the optimizer's state",
	                   q->directory, q->failed_direction == DISK_READ ? "read" : "write");
}

static void at_once(struct disk_queue *q, struct operation *o)
{
	ssize_t n;

	do {
		n = o->direction == DISK_READ ? pread(q->file, o->rest.iov_base, o->rest.iov_len, o->offset)
		                              : pwrite(q->file, o->rest.iov_base, o->rest.iov_len, o->offset);
	} while (!advance(q, o, n < 0 ? -errno : n));
}

/* A place for an operation, once one has ended where all are under way. -1: the ring has failed. */
static int take(struct disk_queue *q)
{
	int r;

	for (;;) {
		for (int i = 0; i < ENTRIES; i++)
			if (!q->operation[i].used)
				return i;
		if ((r = enter(q, 1)) < 0) {
			fail(q, r, DISK_WRITE);
			return -1;
		}
	}
}

int disk_queue_start(struct disk_queue *q, enum disk_direction direction, int tag, void *memory, size_t bytes,
                     int64_t offset, struct error *err)
{
	int r;

	for (size_t done = 0; done < bytes && !q->failed; done += CHUNK) {
		struct operation o = {.used = true,
		                      .direction = direction,
		                      .tag = tag,
		                      .offset = offset + (int64_t)done,
		                      .rest = {(char *)memory + done, MIN(bytes - done, (size_t)CHUNK)}};
		int index;

		if (q->ring.fd < 0) {
			at_once(q, &o);
			continue;
		}
		index = take(q);
		if (index < 0)
			break;
		q->operation[index] = o;
		q->pending[tag]++;
		ring_push(q, index);
	}
	if (q->ring.fd >= 0 && q->ring.queued > 0 && (r = enter(q, 0)) < 0)
		fail(q, r, direction);
	return result_of(q, err);
}

int disk_queue_wait(struct disk_queue *q, int tag, struct error *err)
{
	int r;

	while (q->pending[tag] > 0)
		if ((r = enter(q, 1)) < 0) {
			fail(q, r, DISK_READ);
			break;
		}
	return result_of(q, err);
}

/* ---- life ---- */

int disk_queue_open(const char *directory, int64_t bytes, struct disk_queue **out, struct error *err)
{
	struct disk_queue *q = calloc(1, sizeof(*q));
	int r;

	if (!q)
		return error_oom(err);
	q->ring.fd = -1;
	q->directory = strdup(directory);
	q->file = open_file(directory, O_DIRECT);
	q->direct = q->file >= 0;
	if (q->file == -EINVAL)
		q->file = open_file(directory, 0);
	if (!q->directory)
		r = error_oom(err);
	else if (q->file < 0)
		r = error_errno(err, q->file, "parallel.offload_dir %s: cannot make a file there", directory);
	else
		r = reserve(q, bytes, err);
	if (r < 0) {
		disk_queue_close(q);
		return r;
	}
	(void)ring_open(&q->ring);
	*out = q;
	return 0;
}

void disk_queue_close(struct disk_queue *q)
{
	if (!q)
		return;
	for (int tag = 0; tag < DISK_QUEUE_TAGS && q->ring.fd >= 0; tag++)
		(void)disk_queue_wait(q, tag, NULL);
	ring_close(&q->ring);
	if (q->file >= 0)
		close(q->file);
	free(q->directory);
	free(q);
}

bool disk_queue_is_direct(const struct disk_queue *q)
{
	return q->direct;
}

bool disk_queue_is_concurrent(const struct disk_queue *q)
{
	return q->ring.fd >= 0;
}
