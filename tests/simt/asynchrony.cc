// SPDX-License-Identifier: Apache-2.0
#include "simt/asynchrony.h"
#include "simt/simt.h"

#include "engine/device/dtype.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

namespace simt
{
enum { WARP = 32, WARPGROUP = 128, K = 16, PIECE = 16 /* bytes */, NAMED = 16 };
enum {
	REGISTERS = 65536 /* of a multiprocessor */,
	MAX_REGISTERS = 256 /* of a thread */,
	REGISTER_STEP = 8
};
enum { MAX_COUNT = (1 << 20) - 1 }; /* a barrier's arrivals, and its bytes in either direction */

/* A signalling pattern that no computation gives. */
static const uint32_t UNFINISHED = 0x7fedcba9;

struct barrier_state {
	uint32_t address, count, pending;
	int64_t bytes;           /* expected and not arrived */
	unsigned phase;          /* completed so far */
	unsigned maker, made_at; /* the thread that has initialized it, and when */
	bool fenced;             /* the copy engine sees the initialization */
};

struct copy_on_its_way {
	tensor t;
	uint32_t to;
	int column, row;
	size_t barrier;
};

/* 16 bytes of shared memory. */
struct piece {
	unsigned on_their_way; /* copies */
	unsigned readers;      /* products */
	size_t barrier;        /* + 1: where the last copy has arrived; 0: none has */
	unsigned phase;        /* that completes with this copy */
	/* What the copy engine and the products see here, which is not what threads have written since. */
	unsigned char seen[PIECE];
};

/* A product of a warpgroup, until all of its threads have waited for it. */
struct record {
	product p;
	unsigned begun, finished; /* threads */
	std::vector<uint32_t> pieces;
	std::vector<unsigned> phases; /* of each barrier: to be seen before b is read */
	std::vector<float> b;         /* [4][K][columns / 4]: of each lane of a row */
};

/* The part of a thread. */
struct part {
	std::shared_ptr<record> of;
	float *sums;
	const uint32_t *a;
	uint32_t a_before[4];
	float rows[2][K]; /* of a */
};

struct hidden_sums {
	float *sums;
	std::vector<float> values;
	unsigned products;
};

struct thread_state {
	std::vector<unsigned> seen; /* phases of each barrier */
	bool fenced;
	unsigned registers; /* as setmaxnreg has set it last */
	size_t begun;       /* products */
	std::vector<part> open;
	std::deque<std::vector<part>> groups;
	std::vector<hidden_sums> hidden;
};

struct named_barrier {
	unsigned generation, threads; /* threads: as those that wait have said */
	std::vector<unsigned> waiting;
};

static struct {
	unsigned threads;
	unsigned char *shared;
	size_t bytes;
	bool used;
	std::vector<barrier_state> barriers;
	std::deque<copy_on_its_way> copies;
	std::vector<piece> pieces;
	std::vector<thread_state> thread;
	std::vector<std::vector<std::shared_ptr<record>>> products; /* of each warpgroup */
	named_barrier named[NAMED];
} m;

/* Of each thread when a block starts: as many as __launch_bounds__ of one block lets the compiler give it. */
static unsigned initial_registers()
{
	return std::min<unsigned>(REGISTERS / m.threads / REGISTER_STEP * REGISTER_STEP, MAX_REGISTERS);
}

static void use()
{
	piece untouched = {};

	if (m.used)
		return;
	m.used = true;
	memset(untouched.seen, SHARED_FILL, PIECE);
	m.barriers.clear();
	m.copies.clear();
	m.pieces.assign((m.bytes + PIECE - 1) / PIECE, untouched);
	m.thread.assign(m.threads, thread_state());
	for (thread_state &t : m.thread)
		t.registers = initial_registers();
	m.products.assign((m.threads + WARPGROUP - 1) / WARPGROUP, {});
	for (named_barrier &n : m.named)
		n = named_barrier();
}

void asynchrony_begin(unsigned threads, unsigned char *shared, size_t bytes)
{
	m.threads = threads;
	m.shared = shared;
	m.bytes = bytes;
	m.used = false;
}

static void check_registers()
{
	size_t total = 0;

	for (size_t i = 0; i < m.thread.size(); i++) {
		total += m.thread[i].registers;
		if (m.thread[i].registers != m.thread[i / WARPGROUP * WARPGROUP].registers)
			die("a part of a warpgroup changes its registers");
	}
	if (total > (size_t)initial_registers() * m.threads)
		die("the warpgroups take more registers than the block has");
}

void asynchrony_end()
{
	if (!m.used)
		return;
	check_registers();
	if (!m.copies.empty())
		die("it ends before a copy has arrived");
	for (const barrier_state &b : m.barriers)
		if (b.bytes)
			die("it ends before the bytes that a barrier expects");
	for (const thread_state &t : m.thread)
		if (!t.open.empty() || !t.groups.empty())
			die("it ends before its products");
}

void asynchrony_join(unsigned first, unsigned threads)
{
	if (!m.used)
		return;
	for (size_t b = 0; b < m.barriers.size(); b++) {
		unsigned most = 0;

		for (unsigned i = first; i < first + threads; i++)
			most = std::max(most, m.thread[i].seen.size() > b ? m.thread[i].seen[b] : 0);
		for (unsigned i = first; i < first + threads; i++) {
			m.thread[i].seen.resize(m.barriers.size());
			m.thread[i].seen[b] = most;
		}
	}
}

uint32_t shared_address(const void *p)
{
	size_t at = (size_t)((const unsigned char *)p - m.shared);

	if (at > m.bytes)
		die("an address that is not in dynamic shared memory");
	return (uint32_t)at + SHARED_BASE;
}

static unsigned char *place(uint32_t address)
{
	if (address < SHARED_BASE || address - SHARED_BASE >= m.bytes)
		die("an address beyond the shared memory of the block");
	return m.shared + (address - SHARED_BASE);
}

static piece &piece_at(uint32_t address)
{
	place(address);
	return m.pieces[(address - SHARED_BASE) / PIECE];
}

/* ---- barriers ---- */

static size_t find_barrier(const uint64_t *barrier)
{
	uint32_t address;

	use();
	address = shared_address(barrier);
	for (size_t i = 0; i < m.barriers.size(); i++) {
		const barrier_state &b = m.barriers[i];

		if (b.address != address)
			continue;
		if (b.maker != thread() && b.made_at == block_barriers())
			die("a barrier is used before the others can see its initialization");
		return i;
	}
	die("a barrier that was not initialized");
}

void barrier_init(uint64_t *barrier, uint32_t count)
{
	barrier_state b = {};

	use();
	b.address = shared_address(barrier);
	if (b.address % 8 || !count || count > MAX_COUNT)
		die("a barrier that is not aligned, or expects no arrival or too many");
	for (const barrier_state &other : m.barriers)
		if (other.address == b.address)
			die("a barrier is initialized twice");
	b.count = b.pending = count;
	b.maker = thread();
	b.made_at = block_barriers();
	m.barriers.push_back(b);
}

void barrier_init_fence()
{
	use();
	for (barrier_state &b : m.barriers)
		if (b.maker == thread())
			b.fenced = true;
}

static void complete(barrier_state &b)
{
	if (b.pending || b.bytes)
		return;
	b.phase++;
	b.pending = b.count;
}

static void arrive(barrier_state &b)
{
	if (!b.pending)
		die("more threads arrive at a barrier than it expects");
	b.pending--;
	complete(b);
}

void barrier_expect(uint64_t *barrier, uint32_t bytes)
{
	barrier_state &b = m.barriers[find_barrier(barrier)];

	b.bytes += bytes;
	if (b.bytes > MAX_COUNT)
		die("a barrier expects more bytes than it can count");
	arrive(b);
}

void barrier_arrive(uint64_t *barrier)
{
	arrive(m.barriers[find_barrier(barrier)]);
	yield(); /* whoever waits for this goes on before this thread does anything else */
}

struct phase_of_barrier {
	size_t barrier;
	uint32_t parity;
};

static bool is_complete(void *context)
{
	const phase_of_barrier *p = (const phase_of_barrier *)context;

	return (m.barriers[p->barrier].phase & 1) != p->parity;
}

void barrier_wait(uint64_t *barrier, uint32_t parity)
{
	phase_of_barrier p = {find_barrier(barrier), parity};
	thread_state &t = m.thread[thread()];

	if (parity > 1)
		die("a parity is 0 or 1");
	wait_until(is_complete, &p);
	t.seen.resize(m.barriers.size());
	t.seen[p.barrier] = m.barriers[p.barrier].phase;
}

struct generation {
	named_barrier *barrier;
	unsigned before;
};

static bool is_released(void *context)
{
	const generation *g = (const generation *)context;

	return g->barrier->generation != g->before;
}

void group_barrier(int id, unsigned threads)
{
	named_barrier *n;
	generation g;

	use();
	if (id < 1 || id >= NAMED || threads % WARP)
		die("no such named barrier");
	n = &m.named[id];
	if (!n->waiting.empty() && n->threads != threads)
		die("threads wait at a named barrier for different numbers of threads");
	n->threads = threads;
	g = {n, n->generation};
	n->waiting.push_back(thread());
	if (n->waiting.size() == threads) {
		std::vector<unsigned> waiting;

		waiting.swap(n->waiting);
		n->generation++;
		for (size_t b = 0; b < m.barriers.size(); b++) {
			unsigned most = 0;

			for (unsigned i : waiting)
				most = std::max(most, m.thread[i].seen.size() > b ? m.thread[i].seen[b] : 0);
			for (unsigned i : waiting) {
				m.thread[i].seen.resize(m.barriers.size());
				m.thread[i].seen[b] = most;
			}
		}
	}
	wait_until(is_released, &g);
}

/* ---- copies ---- */

/* The bytes of a row of the pattern that pieces are exchanged in. */
static uint32_t pattern_row(int swizzle)
{
	static const uint32_t bytes[] = {16, 128, 64, 32};

	return bytes[swizzle];
}

/* Pieces within a row change places with the number of the row: bits 4… of an address are exclusively or-ed
 * with its bits 7…, three of them, two, one or none. */
static uint32_t exchanged(uint32_t address, int swizzle)
{
	static const uint32_t mask[] = {0, 7, 3, 1};

	return address ^ ((address >> 7 & mask[swizzle]) << 4);
}

bool tensor_check(const tensor &t)
{
	uint64_t most = (uint64_t)1 << 32;
	uint32_t width = t.box_columns * 2;

	return (uintptr_t)t.address % 16 == 0 && t.row_bytes % 16 == 0 && t.row_bytes < (uint64_t)1 << 40 &&
	       t.rows >= 1 && t.rows <= most && t.columns >= 1 && t.columns <= most && t.box_rows >= 1 &&
	       t.box_rows <= 256 && t.box_columns >= 1 && t.box_columns <= 256 && width % 16 == 0 &&
	       (t.swizzle == 0 || width <= pattern_row(t.swizzle));
}

static uint32_t box_bytes(const tensor &t)
{
	return t.box_rows * t.box_columns * 2;
}

void tensor_load(void *to, const tensor &t, uint64_t *barrier, int column, int row)
{
	copy_on_its_way c = {t, shared_address(to), column, row, find_barrier(barrier)};

	if (!m.barriers[c.barrier].fenced)
		die("a copy at a barrier whose initialization the copy engine does not see yet");
	if (!tensor_check(t))
		die("a copy by a map that the driver would not make");
	if (c.to % 128 || c.to % (8 * pattern_row(t.swizzle)))
		die("a copy to a place that is not aligned to its pattern");
	/* Shorter rows would have gaps. */
	if (t.swizzle && t.box_columns * 2 != pattern_row(t.swizzle))
		die("a box that is not as wide as its pattern");
	for (uint32_t at = 0; at < box_bytes(t); at += PIECE) {
		piece &p = piece_at(c.to + at);

		if (p.readers)
			die("a copy overwrites what a product reads");
		if (p.on_their_way)
			die("two copies write to one place");
		if (memcmp(place(c.to + at), p.seen, PIECE))
			die("a copy overwrites what threads have written: no fence.proxy.async is emulated");
		p.on_their_way++;
		memset(place(c.to + at), SHARED_FILL, PIECE);
	}
	m.copies.push_back(c);
}

static void carry_out(const copy_on_its_way &c)
{
	barrier_state &b = m.barriers[c.barrier];

	for (uint32_t r = 0; r < c.t.box_rows; r++) {
		for (uint32_t x = 0; x < c.t.box_columns; x++) {
			int64_t row = (int64_t)c.row + r, column = (int64_t)c.column + x;
			uint32_t to = exchanged(c.to + (r * c.t.box_columns + x) * 2, c.t.swizzle);
			bool inside = row >= 0 && row < (int64_t)c.t.rows && column >= 0 &&
			              column < (int64_t)c.t.columns;

			if (inside)
				memcpy(place(to), c.t.address + (uint64_t)row * c.t.row_bytes + column * 2,
				       2);
			else
				memset(place(to), 0, 2);
		}
	}
	for (uint32_t at = 0; at < box_bytes(c.t); at += PIECE) {
		piece &p = piece_at(c.to + at);

		p.on_their_way--;
		p.barrier = c.barrier + 1;
		p.phase = b.phase + 1;
		memcpy(p.seen, place(c.to + at), PIECE);
	}
	b.bytes -= box_bytes(c.t);
	if (b.bytes < -MAX_COUNT)
		die("more bytes arrive at a barrier than it can count");
	complete(b);
}

bool asynchrony_deliver(bool newest_first)
{
	copy_on_its_way c;

	if (!m.used || m.copies.empty())
		return false;
	c = newest_first ? m.copies.back() : m.copies.front();
	if (newest_first)
		m.copies.pop_back();
	else
		m.copies.pop_front();
	carry_out(c);
	return true;
}

/* ---- registers ---- */

void registers_change(unsigned registers, bool more)
{
	unsigned *now;
	int none = 0;

	use();
	now = &m.thread[thread()].registers;
	if (registers % REGISTER_STEP || registers < 24 || registers > MAX_REGISTERS)
		die("a thread cannot have this number of registers");
	if (more ? *now > registers : *now < registers)
		die("registers are given back that a thread does not have, or taken that it has");
	*now = registers;
	warp_exchange(&none, sizeof(none)); /* the lanes execute it together */
}

/* ---- products ---- */

struct descriptor {
	uint32_t start, leading, stride;
	int swizzle;
};

static descriptor parse(uint64_t d)
{
	descriptor out = {};

	out.start = (uint32_t)(d & 0x3fff) << 4;
	out.leading = (uint32_t)(d >> 16 & 0x3fff) << 4;
	out.stride = (uint32_t)(d >> 32 & 0x3fff) << 4;
	out.swizzle = (int)(d >> 62);
	if (d & ~0xc00e3fff3fff3fffull)
		die("a descriptor with bits that have no meaning");
	if (d >> 49 & 7)
		die("a descriptor with a base offset, which the emulator does not have");
	/* The pattern repeats after 8 rows, and begins at such an address. */
	if (out.swizzle && out.start % (8 * pattern_row(out.swizzle)) >= pattern_row(out.swizzle))
		die("a descriptor that does not begin in the first row of a pattern");
	if (out.swizzle && out.stride % (8 * pattern_row(out.swizzle)))
		die("a descriptor whose groups of eight rows do not begin with the pattern");
	return out;
}

/* What is read of a row of the pattern, the whole one if transposed, is within it. */
static void check_row(const descriptor &d, bool transposed)
{
	uint32_t width = pattern_row(d.swizzle), read = transposed ? width : K * 2;

	if (d.swizzle && d.start % width + read > width)
		die("a descriptor that leads out of a row of the pattern");
	if (d.swizzle && transposed && d.leading % (8 * width))
		die("a descriptor whose next columns do not begin with the pattern");
}

/* The canonical layouts of the PTX ISA's section on wgmma, with T = 8 elements. */
uint32_t operand_address(uint64_t from, bool transposed, unsigned row, unsigned k)
{
	descriptor d = parse(from);
	uint32_t width = pattern_row(d.swizzle), pieces = width / PIECE, at;

	check_row(d, transposed);
	if (!transposed && !d.swizzle) /* ((8,m),(T,2k)):((1T,SBO),(1,LBO)) */
		at = row % 8 * PIECE + row / 8 * d.stride + k % 8 * 2 + k / 8 * d.leading;
	else if (!transposed) /* ((8,m),(T,2k)):((xT,SBO),(1,T)), x = 8, 4, 2 */
		at = row % 8 * width + row / 8 * d.stride + k * 2;
	else if (!d.swizzle) /* ((T,1,m),(8,k)):((1,T,SBO),(1T,LBO)) */
		at = row % 8 * 2 + row / 8 * d.stride + k % 8 * PIECE + k / 8 * d.leading;
	else /* ((T,x,m),(8,k)):((1,T,LBO),(xT,SBO)) */
		at = row % 8 * 2 + row / 8 % pieces * PIECE + row / (8 * pieces) * d.leading + k % 8 * width +
		     k / 8 * d.stride;
	return exchanged(d.start + at, d.swizzle);
}

static float element(uint32_t address, bool f16)
{
	uint16_t bits;

	memcpy(&bits, place(address), 2);
	return f16 ? f16_to_float(bits) : bf16_to_float(bits);
}

/* Calls f with the address of each piece of an operand, and where it lies: 8 elements of a row from k on, or
 * transposed of 8 rows. */
template <typename F> static void each_piece(uint64_t d, bool transposed, unsigned rows, F f)
{
	for (unsigned row = 0; row < rows; row += transposed ? 8 : 1)
		for (unsigned k = 0; k < K; k += transposed ? 1 : 8)
			f(operand_address(d, transposed, row, k), row, k);
}

static void expect_phase(std::vector<unsigned> &phases, uint32_t address)
{
	const piece &p = piece_at(address);

	if (p.on_their_way)
		die("a product reads what has not arrived");
	if (!p.barrier)
		die("a product reads what no copy has brought");
	if (memcmp(place(address / PIECE * PIECE), p.seen, PIECE))
		die("a product reads what threads have written: no fence.proxy.async is emulated");
	phases.resize(std::max(phases.size(), p.barrier));
	phases[p.barrier - 1] = std::max(phases[p.barrier - 1], p.phase);
}

static void check_seen(const thread_state &t, const std::vector<unsigned> &phases)
{
	for (size_t i = 0; i < phases.size(); i++)
		if (phases[i] > (t.seen.size() > i ? t.seen[i] : 0))
			die("a product reads what its thread has not seen arrive");
}

static void read_b(record &r)
{
	unsigned n = (unsigned)r.p.columns;

	r.b.resize((size_t)K * n);
	each_piece(r.p.b, r.p.transpose_b, n, [&](uint32_t address, unsigned row, unsigned k) {
		expect_phase(r.phases, address);
		for (unsigned i = 0; i < 8; i++) {
			unsigned col = r.p.transpose_b ? row + i : row, x = r.p.transpose_b ? k : k + i;
			unsigned t = col % 8 / 2, q = col / 8 * 2 + col % 2;

			r.b[(t * K + x) * (n / 4) + q] = element(address + 2 * i, r.p.f16);
		}
	});
}

static bool is_same(const product &a, const product &b)
{
	return a.columns == b.columns && a.f16 == b.f16 && a.transpose_a == b.transpose_a &&
	       a.transpose_b == b.transpose_b && a.accumulate == b.accumulate && a.registers == b.registers &&
	       (a.registers || a.a == b.a) && a.b == b.b;
}

/* The record of this product, which the first thread of the warpgroup makes. */
static std::shared_ptr<record> take_record(const product &p, size_t number)
{
	std::vector<std::shared_ptr<record>> &all = m.products[thread() / WARPGROUP];

	if (number == all.size()) {
		std::shared_ptr<record> made = std::make_shared<record>();

		made->p = p;
		each_piece(p.b, p.transpose_b, (unsigned)p.columns,
		           [&](uint32_t address, unsigned, unsigned) { made->pieces.push_back(address); });
		if (!p.registers)
			each_piece(p.a, p.transpose_a, 64, [&](uint32_t address, unsigned, unsigned) {
				made->pieces.push_back(address);
			});
		for (uint32_t address : made->pieces)
			piece_at(address).readers++;
		all.push_back(made);
	}
	if (!all[number] || !is_same(all[number]->p, p))
		die("the warps of a warpgroup multiply different operands");
	all[number]->begun++;
	return all[number];
}

static float half_of(uint32_t pair, unsigned which, bool f16)
{
	uint16_t bits = (uint16_t)(which ? pair >> 16 : pair);

	return f16 ? f16_to_float(bits) : bf16_to_float(bits);
}

/* Row g of a, and row g + 8, are in the registers of the lanes 4·g to 4·g + 3. */
static void take_rows(part &p, const uint32_t *a)
{
	const unsigned char *lanes = warp_exchange(a, 16);
	unsigned g = thread() % WARP / 4;

	for (unsigned t = 0; t < 4; t++) {
		uint32_t r[4];

		memcpy(r, lanes + 16 * (4 * g + t), sizeof(r));
		for (unsigned i = 0; i < 2; i++)
			for (unsigned half = 0; half < 2; half++) {
				p.rows[half][2 * t + i] = half_of(r[half], i, p.of->p.f16);
				p.rows[half][2 * t + 8 + i] = half_of(r[half + 2], i, p.of->p.f16);
			}
	}
}

static hidden_sums &hide(thread_state &t, float *sums, unsigned n)
{
	for (hidden_sums &h : t.hidden)
		if (h.sums == sums)
			return h;
	t.hidden.push_back({sums, std::vector<float>(sums, sums + n), 0});
	for (unsigned i = 0; i < n; i++)
		memcpy(sums + i, &UNFINISHED, sizeof(UNFINISHED));
	return t.hidden.back();
}

void product_begin(const product &p, float *sums, const uint32_t *a)
{
	thread_state *t;
	part now = {};

	use();
	t = &m.thread[thread()];
	if (!t->fenced)
		die("a product without a fence after the last wait");
	if (p.columns % 8 || p.columns < 8 || p.columns > 256 || m.threads % WARPGROUP)
		die("no such product");
	now.of = take_record(p, t->begun++);
	now.sums = sums;
	now.a = a;
	if (a) {
		memcpy(now.a_before, a, sizeof(now.a_before));
		take_rows(now, a);
	}
	hide(*t, sums, (unsigned)p.columns / 2).products++;
	t->open.push_back(now);
}

void product_fence()
{
	use();
	m.thread[thread()].fenced = true;
}

void product_touched()
{
	use();
	m.thread[thread()].fenced = false;
}

void product_commit()
{
	thread_state &t = m.thread[thread()];

	t.groups.push_back({});
	t.groups.back().swap(t.open);
}

static void read_rows(part &p, const thread_state &t)
{
	const product &of = p.of->p;
	std::vector<unsigned> phases;

	for (unsigned half = 0; half < 2; half++) {
		unsigned row = thread() % WARPGROUP / WARP * 16 + thread() % WARP / 4 + 8 * half;

		for (unsigned k = 0; k < K; k++) {
			uint32_t address = operand_address(of.a, of.transpose_a, row, k);

			expect_phase(phases, address);
			p.rows[half][k] = element(address, of.f16);
		}
	}
	check_seen(t, phases);
}

static void reveal(thread_state &t, size_t i)
{
	hidden_sums &h = t.hidden[i];

	std::copy(h.values.begin(), h.values.end(), h.sums);
	t.hidden.erase(t.hidden.begin() + (ptrdiff_t)i);
}

typedef float two __attribute__((vector_size(8)));

/* Most of the time of a product is spent here. The lengths are checked where the product begins (columns) and
 * where b is read: the sanitizers, with which a loop takes several times as long, have nothing to find in it.
 */
__attribute__((no_sanitize("address", "undefined"))) static void multiply(two *sums, const float *row,
                                                                          const two *b, unsigned pairs)
{
	for (unsigned q = 0; q < pairs; q++)
		sums[q] = two{0, 0};
	for (unsigned k = 0; k < K; k++)
		for (unsigned q = 0; q < pairs; q++)
			sums[q] += two{row[k], row[k]} * b[k * pairs + q];
}

static void add(hidden_sums &h, const part &p)
{
	const record &r = *p.of;
	unsigned pairs = (unsigned)r.p.columns / 8; /* of sums of a row */
	const two *b = (const two *)r.b.data() + (size_t)(thread() % 4) * K * pairs;
	two sums[32];

	for (unsigned half = 0; half < 2; half++) {
		multiply(sums, p.rows[half], b, pairs);
		for (unsigned q = 0; q < pairs; q++)
			for (unsigned i = 0; i < 2; i++) {
				float *to = &h.values[q * 4 + half * 2 + i];

				*to = r.p.accumulate ? *to + sums[q][i] : sums[q][i];
			}
	}
}

static void finish(thread_state &t, part &p)
{
	record &r = *p.of;
	size_t i = 0;

	while (t.hidden[i].sums != p.sums)
		i++;
	for (unsigned s = 0; s < (unsigned)r.p.columns / 2; s++)
		if (memcmp(p.sums + s, &UNFINISHED, sizeof(UNFINISHED)))
			die("sums are written before their product is finished");
	if (p.a && memcmp(p.a, p.a_before, sizeof(p.a_before)))
		die("an operand in registers is written before its product is finished");
	if (r.b.empty())
		read_b(r);
	check_seen(t, r.phases);
	if (!r.p.registers)
		read_rows(p, t);
	add(t.hidden[i], p);
	if (--t.hidden[i].products == 0)
		reveal(t, i);
	if (++r.finished == WARPGROUP) {
		for (uint32_t address : r.pieces)
			piece_at(address).readers--;
		for (std::shared_ptr<record> &other : m.products[thread() / WARPGROUP])
			if (other == p.of)
				other.reset();
	}
}

void product_wait(unsigned groups)
{
	thread_state *t;
	int none = 0;

	use();
	t = &m.thread[thread()];
	while (t->groups.size() > groups) {
		for (part &p : t->groups.front())
			finish(*t, p);
		t->groups.pop_front();
	}
	t->fenced = false;
	warp_exchange(&none, sizeof(none)); /* the lanes wait together */
}
} // namespace simt
