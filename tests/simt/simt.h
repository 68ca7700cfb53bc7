// SPDX-License-Identifier: Apache-2.0
/*
 * A GPU of one multiprocessor, in plain C++: the threads of a block are fibers on one thread of the host, and
 * blocks run one after the other. A thread runs until it reaches a barrier (of its block or its warp), so
 * that a kernel that lacks a barrier gives other results when the threads run in the opposite order, which
 * SIMT_ORDER=reverse sets.
 *
 * A barrier that some threads of a block never reach, or an exit from within a warp's exchange, ends the
 * program with the kernel's name. Dynamic shared memory is filled with NaNs before each block, and
 * asynchronous copies are carried out only when the kernel waits for them. A block may have 227 KiB of shared
 * memory, or SIMT_SHARED KiB.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>

#include <cuda_runtime_api.h>

struct simt_index {
	unsigned x, y, z;
};

struct dim3 {
	unsigned x, y, z;
	dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
	{
	}
};

extern simt_index threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace simt
{
typedef void (*body)(void *context);

void launch(const char *kernel, dim3 grid, dim3 block, size_t shared, body f, void *context);
void *dynamic_shared();

/* Barriers of the running thread. */
void block_barrier();
/* Barrier of all threads of the block; returns whether p is true for any. */
bool block_any(bool p);
/* Barrier of all lanes of the warp: each passes `bytes` (up to 16) and gets those of all lanes, in order. */
const unsigned char *warp_exchange(const void *data, size_t bytes); /* those of lane l are at 16·l */
/* The same barrier, and the product of mma.m16n8k16, whose fragments these are: a of 8 elements, b of 4. Each
 * sum begins with the product of the lowest k, and is added to c then. */
void warp_multiply(float (&c)[4], const float (&a)[8], const float (&b)[4]);

void copy_async(void *shared, const void *global, bool valid);
void copy_commit();
void copy_wait(int groups);

/* The kernel that was launched last, as the launch names it. */
const char *last_kernel();
/* Ends the program with the kernel's name: by abort(), or with status 1 where the environment has a
 * SIMT_REASON that is another one. */
[[noreturn]] void die(const char *what);
/* The running thread waits; the others go on meanwhile. */
void wait_until(bool (*met)(void *condition), void *condition);
void yield();
unsigned thread();         /* of the block, the running one */
unsigned block_barriers(); /* that this block has passed */

/* A kernel with its arguments, as they were when it was queued. */
template <typename K, typename T> struct queued {
	const char *name;
	dim3 grid, block;
	size_t shared;
	K kernel;
	T arguments;

	void run()
	{
		launch(
		    name, grid, block, shared,
		    [](void *context) {
			    queued *q = (queued *)context;

			    std::apply(q->kernel, q->arguments);
		    },
		    this);
	}
};

template <typename... P, typename... A>
void launch_on(cudaStream_t s, const char *name, dim3 grid, dim3 block, size_t shared, void (*kernel)(P...),
               A... arguments)
{
	typedef queued<void (*)(P...), std::tuple<P...>> work;
	work now = {name, grid, block, shared, kernel, std::tuple<P...>(arguments...)};

	if (simt_stream_late(s)) {
		simt_stream_defer(
		    s,
		    [](void *context) {
			    simt_enter(NULL);
			    ((work *)context)->run();
			    simt_leave();
			    delete (work *)context;
		    },
		    new work(now));
		return;
	}
	simt_enter(s);
	now.run();
	simt_leave();
}

/* The pointers among the arguments of a kernel, except for those in a struct. */
template <typename T> void check_argument(const char *kernel, T *p)
{
	simt_check(p, kernel);
}

template <typename T> void check_argument(const char *, T)
{
}

template <typename... A> void check_arguments(const char *kernel, A... arguments)
{
	(check_argument(kernel, arguments), ...);
}

template <typename V> V exchange(V x, int from)
{
	V y;

	static_assert(sizeof(V) <= 16, "a lane brings 16 bytes at most");
	memcpy(&y, warp_exchange(&x, sizeof(x)) + 16 * from, sizeof(y));
	return y;
}
} // namespace simt
