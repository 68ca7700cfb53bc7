// SPDX-License-Identifier: Apache-2.0
#include "simt/simt.h"
#include "simt/asynchrony.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

simt_index threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace simt
{
enum { WARP = 32, MAX_THREADS = 1024, STACK = 64 * 1024 };

enum state { READY, AT_BLOCK, AT_WARP, AT_CONDITION, DONE };

struct copy {
	void *to;
	const void *from; /* NULL: zeros */
};

struct fiber {
	enum state state;
	simt_index index;
	unsigned exchanges; /* so far: two buffers alternate */
	bool predicate;
	bool (*met)(void *condition); /* AT_CONDITION: what the thread waits for */
	void *condition;
	std::vector<std::vector<copy>> groups; /* committed, the oldest first */
	std::vector<copy> open;
	void *stack;
#if defined(__x86_64__)
	void *sp;
#else
	ucontext_t context;
#endif
};

typedef float four __attribute__((vector_size(16)));

/* What the lanes of a warp exchange, in two buffers that alternate. The operands of a product lie as the four
 * sums of a lane (g, t) = (lane / 4, lane % 4) need them: of rows g, g, g + 8, g + 8 of a and of columns 2t,
 * 2t + 1, 2t, 2t + 1 of b. */
struct warp {
	unsigned char lane[2][WARP * 16];
	four a[2][8][16]; /* of each g and k */
	four b[2][4][16]; /* of each t and k */
};

/* One machine per process, which simt_enter and simt_leave give to one thread at a time. */
static struct {
	fiber *fibers; /* [MAX_THREADS] */
	warp *warps;
	unsigned threads, current, made, barriers;
	bool any, reverse, configured;
	unsigned char *shared;
	size_t shared_size, shared_used;
	body f;
	void *context;
	const char *kernel;
#if defined(__x86_64__)
	void *sp;
#else
	ucontext_t scheduler;
#endif
} m;

const char *last_kernel()
{
	return m.kernel;
}

void die(const char *what)
{
	const char *reason = getenv("SIMT_REASON");

	fprintf(stderr, "simt: %s, block (%u, %u, %u): %s\n", m.kernel, blockIdx.x, blockIdx.y, blockIdx.z,
	        what);
	if (reason && strcmp(reason, what) != 0)
		_exit(1);
	abort();
}

/* ---- switching: in assembly where it is implemented, since ucontext makes a system call for the signal mask
 * ---- */
#if defined(__x86_64__)
extern "C" void simt_switch(void **save, void *to);
__asm__(".text\n"
        ".globl simt_switch\n"
        ".type simt_switch, @function\n"
        "simt_switch:\n"
        "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsp, (%rdi)\n"
        "mov %rsi, %rsp\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n"
        "ret\n"
        ".size simt_switch, .-simt_switch\n");

static void to_fiber(fiber *f)
{
	simt_switch(&m.sp, f->sp);
}

static void to_scheduler(fiber *f)
{
	simt_switch(&f->sp, m.sp);
}

static void prepare(fiber *f, void (*entry)())
{
	void **top = (void **)((char *)f->stack + STACK);

	*--top = NULL; /* the stack is 16-byte aligned before a call */
	*--top = (void *)entry;
	for (int i = 0; i < 6; i++)
		*--top = NULL;
	f->sp = top;
}
#else
static void to_fiber(fiber *f)
{
	swapcontext(&m.scheduler, &f->context);
}

static void to_scheduler(fiber *f)
{
	swapcontext(&f->context, &m.scheduler);
}

static void prepare(fiber *f, void (*entry)())
{
	getcontext(&f->context);
	f->context.uc_stack.ss_sp = f->stack;
	f->context.uc_stack.ss_size = STACK;
	f->context.uc_link = NULL;
	makecontext(&f->context, entry, 0);
}
#endif

static fiber *self()
{
	return &m.fibers[m.current];
}

/* A fiber never ends: it runs a thread of a block, and waits for the next one. */
static void entry()
{
	for (;;) {
		m.f(m.context);
		self()->state = DONE;
		to_scheduler(self());
	}
}

static void pause(enum state state)
{
	fiber *f = self();

	f->state = state;
	to_scheduler(f);
}

static bool release_warp(unsigned w)
{
	unsigned waiting = 0, first = w * WARP;

	for (unsigned i = first; i < first + WARP; i++)
		waiting += m.fibers[i].state == AT_WARP;
	if (waiting < WARP)
		return false;
	for (unsigned i = first; i < first + WARP; i++)
		m.fibers[i].state = READY;
	return true;
}

static bool release_block()
{
	m.any = false;
	for (unsigned i = 0; i < m.threads; i++) {
		if (m.fibers[i].state != AT_BLOCK)
			return false;
		m.any = m.any || m.fibers[i].predicate;
	}
	for (unsigned i = 0; i < m.threads; i++)
		m.fibers[i].state = READY;
	m.barriers++;
	asynchrony_join(0, m.threads);
	return true;
}

/* A thread whose condition is met goes on. */
static void check_condition(fiber *f)
{
	if (f->state == AT_CONDITION && f->met(f->condition))
		f->state = READY;
}

static void run_block()
{
	unsigned done = 0;

	m.barriers = 0;
	for (unsigned i = 0; i < m.threads; i++)
		m.fibers[i].state = READY;
	asynchrony_begin(m.threads, m.shared, m.shared_used);
	while (done < m.threads) {
		bool moved = false;

		done = 0;
		for (unsigned w = 0; w < m.threads / WARP; w++) {
			unsigned warp = m.reverse ? m.threads / WARP - 1 - w : w;

			/* A warp runs alone as long as it only reaches barriers of the warp. */
			do {
				for (unsigned l = 0; l < WARP; l++) {
					m.current = warp * WARP + (m.reverse ? WARP - 1 - l : l);
					check_condition(self());
					if (self()->state != READY)
						continue;
					threadIdx = self()->index;
					to_fiber(self());
					moved = true;
				}
			} while (release_warp(warp));
			for (unsigned l = 0; l < WARP; l++)
				done += m.fibers[warp * WARP + l].state == DONE;
		}
		/* What is asynchronous arrives as late as possible: when no thread can go on without it. */
		if (done < m.threads && !release_block() && !moved && !asynchrony_deliver(m.reverse))
			die("some threads wait where the others never come");
	}
	asynchrony_end();
}

static void make_fibers(unsigned n)
{
	if (!m.configured) {
		const char *order = getenv("SIMT_ORDER");

		m.reverse = order && !strcmp(order, "reverse");
		m.fibers = new fiber[MAX_THREADS]();
		m.warps = new warp[MAX_THREADS / WARP]();
		m.configured = true;
	}
	for (; m.made < n; m.made++) {
		fiber *f = &m.fibers[m.made];

		f->stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (f->stack == MAP_FAILED)
			die("no memory for a thread");
		prepare(f, entry);
	}
}

void launch(const char *kernel, dim3 grid, dim3 block, size_t shared, body f, void *context)
{
	unsigned threads = block.x * block.y * block.z, asked = threads;

	m.kernel = kernel;
	if (!threads || threads > MAX_THREADS || grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.y > 65535 ||
	    grid.z > 65535 || grid.x > 0x7fffffff)
		die("no such grid");
	if (shared > simt_shared_most())
		die("more shared memory than a block may have");
	/* Lanes of the last warp beyond the block are idle; only a block of one warp may have an incomplete
	 * warp.
	 */
	if (threads > 1 && threads % WARP)
		die("a block of no whole warps");
	threads = asked == 1 ? WARP : asked;
	make_fibers(threads);
	if (shared > m.shared_size) {
		free(m.shared);
		m.shared = (unsigned char *)aligned_alloc(1024, (shared + 1023) / 1024 * 1024);
		m.shared_size = shared;
	}
	m.shared_used = shared;
	m.threads = threads;
	m.f = f;
	m.context = context;
	gridDim = grid;
	blockDim = block;
	for (unsigned i = 0; i < threads; i++) {
		m.fibers[i].index = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
		m.fibers[i].exchanges = 0;
	}
	for (unsigned z = 0; z < grid.z; z++)
		for (unsigned y = 0; y < grid.y; y++)
			for (unsigned x = 0; x < grid.x; x++) {
				blockIdx = {x, y, z};
				if (shared)
					memset(m.shared, SHARED_FILL, shared);
				if (asked == 1) { /* no other lane */
					threadIdx = {0, 0, 0};
					m.current = 0;
					f(context);
					continue;
				}
				for (unsigned i = 0; i < threads; i++) {
					m.fibers[i].groups.clear();
					m.fibers[i].open.clear();
				}
				run_block();
			}
}

void *dynamic_shared()
{
	return m.shared;
}

void block_barrier()
{
	self()->predicate = false;
	pause(AT_BLOCK);
}

bool block_any(bool p)
{
	self()->predicate = p;
	pause(AT_BLOCK);
	return m.any;
}

void wait_until(bool (*met)(void *condition), void *condition)
{
	self()->met = met;
	self()->condition = condition;
	if (!met(condition))
		pause(AT_CONDITION);
}

void yield()
{
	pause(READY);
}

unsigned thread()
{
	return m.current;
}

unsigned block_barriers()
{
	return m.barriers;
}

const unsigned char *warp_exchange(const void *data, size_t bytes)
{
	fiber *f = self();
	unsigned char *lanes = m.warps[m.current / WARP].lane[f->exchanges++ % 2];

	memcpy(lanes + 16 * (m.current % WARP), data, bytes);
	pause(AT_WARP);
	return lanes;
}

/* Most of the time of attention is spent here. It writes to memory of the emulator alone,
 * which the sanitizers do not have to watch. */
__attribute__((no_sanitize("address", "undefined"))) void warp_multiply(float (&c)[4], const float (&a)[8],
                                                                        const float (&b)[4])
{
	fiber *f = self();
	unsigned lane = m.current % WARP, g = lane / 4, t = lane % 4, turn = f->exchanges++ % 2;
	warp *w = &m.warps[m.current / WARP];
	four sum = {0, 0, 0, 0};

	/* Of a, rows g and g + 8 in turn: k's 2t and 2t + 1, then those 8 further; of b, column g: the same
	 * k's. */
	for (unsigned i = 0; i < 8; i++) {
		unsigned k = i / 4 * 8 + 2 * t + i % 2, at = i / 2 % 2 * 2;

		w->a[turn][g][k][at] = w->a[turn][g][k][at + 1] = a[i];
	}
	for (unsigned i = 0; i < 4; i++) {
		unsigned k = i / 2 * 8 + 2 * t + i % 2;

		w->b[turn][g / 2][k][g % 2] = w->b[turn][g / 2][k][g % 2 + 2] = b[i];
	}
	pause(AT_WARP);
	for (unsigned k = 0; k < 16; k++)
		sum += w->a[turn][g][k] * w->b[turn][t][k];
	for (unsigned i = 0; i < 4; i++)
		c[i] += sum[i];
}

void copy_async(void *shared, const void *global, bool valid)
{
	if (((uintptr_t)shared | (valid ? (uintptr_t)global : 0)) & 15)
		die("an asynchronous copy that is not aligned");
	self()->open.push_back({shared, valid ? global : NULL});
}

void copy_commit()
{
	self()->groups.push_back({});
	self()->groups.back().swap(self()->open);
}

void copy_wait(int groups)
{
	fiber *f = self();

	while (f->groups.size() > (size_t)groups) {
		for (const copy &c : f->groups.front())
			if (c.from)
				memcpy(c.to, c.from, 16);
			else
				memset(c.to, 0, 16);
		f->groups.erase(f->groups.begin());
	}
}
} // namespace simt

extern "C" size_t simt_shared_most(void)
{
	const char *asked = getenv("SIMT_SHARED");

	return (size_t)(asked ? atoi(asked) : 227) * 1024;
}

/* ---- device memory ---- */
#define REGIONS 256

static struct {
	struct {
		char *p;
		size_t size;
	} region[REGIONS];
	bool asked, on;
} memory;

static bool protecting()
{
	if (!memory.asked) {
		memory.on = getenv("SIMT_PROTECT");
		memory.asked = true;
	}
	return memory.on;
}

static void protect(int how)
{
	for (auto &r : memory.region)
		if (r.p && mprotect(r.p, r.size, how) < 0)
			abort();
}

extern "C" void *simt_malloc(size_t bytes)
{
	size_t size = (bytes + 65535) / 4096 * 4096;
	void *p;

	if (!protecting())
		return aligned_alloc(256, (bytes + 255) / 256 * 256);
	for (auto &r : memory.region) {
		if (r.p)
			continue;
		p = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED)
			return NULL;
		r.p = (char *)p;
		r.size = size;
		return p;
	}
	return NULL;
}

extern "C" void simt_free(void *p)
{
	if (!p)
		return;
	if (!protecting()) {
		free(p);
		return;
	}
	for (auto &r : memory.region) {
		if (r.p == p) {
			munmap(r.p, r.size);
			r.p = NULL;
			return;
		}
	}
	fprintf(stderr, "simt: what is freed is no device memory\n");
	abort();
}

static std::recursive_mutex machine;

/* What the stream waits for may be another thread's work, and is waited for without the machine. */
extern "C" void simt_enter(cudaStream_t s)
{
	if (simt_stream_late(s)) /* what is not a kernel is done at once, and in order */
		simt_stream_finish(s);
	else if (s)
		simt_stream_settle(s);
	machine.lock();
	if (protecting())
		protect(PROT_READ | PROT_WRITE);
}

extern "C" void simt_leave(void)
{
	if (protecting())
		protect(PROT_NONE);
	machine.unlock();
}

extern "C" void simt_check(const void *p, const char *what)
{
	if (!p || !protecting())
		return;
	for (auto &r : memory.region)
		if (r.p && (const char *)p >= r.p && (const char *)p < r.p + r.size)
			return;
	fprintf(stderr, "simt: %s: a pointer to the host's memory\n", what);
	abort();
}
