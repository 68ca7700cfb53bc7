/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors, Hugging Face directories, checkpoints on disk, and invalid files. */
#include "unit.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/str.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/claim.h"
#include "engine/checkpoint/hf.h"
#include "engine/checkpoint/parameters.h"
#include "engine/checkpoint/tfevents.h"
#include "engine/device/nf4.h"

/* A file in memory: a header as given, then `data` bytes of zeros. */
static int parse(const char *header, size_t data, struct error *err)
{
	_cleanup_(safetensors_closep) struct safetensors *st = NULL;
	_cleanup_strbuf_ struct strbuf b = {0};
	uint64_t len = strlen(header);

	strbuf_add(&b, &len, 8);
	strbuf_adds(&b, header);
	for (size_t i = 0; i < data; i++)
		strbuf_addc(&b, 0);
	*err = (struct error)ERROR_INIT;
	return safetensors_parse(b.data, b.len, "x.safetensors", &st, err);
}

#define T(name, type, shape, offsets)                                                                        \
	"\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

START_TEST(every_promise_of_a_header_is_checked)
{
	struct error err = ERROR_INIT;

	ck_ok(parse("{" T("a", "F32", "[2,3]", "[0,24]") "}", 24, &err), &err);
	ck_ok(parse("{}   ", 0, &err), &err);
	ck_ok(parse("{" T("a", "F32", "[]", "[0,4]") "," T("b", "F32", "[0]", "[4,4]") "}", 4, &err), &err);
	ck_fails(parse("{" T("a", "F32", "[2,3]", "[0,24]") "}", 20, &err), &err,
	         "x.safetensors: tensor a: ends at byte 24 of the data, the file has 20");
	ck_fails(parse("{" T("a", "F32", "[2,3]", "[0,20]") "}", 20, &err), &err,
	         "F32 [2, 3] does not fill 20");
	ck_fails(parse("{" T("a", "F9", "[2,3]", "[0,24]") "}", 24, &err), &err, "type F9 is not known");
	ck_fails(parse("{" T("a", "F32", "[2,-3]", "[0,24]") "}", 24, &err), &err, "shape");
	ck_fails(parse("{" T("a", "F32", "[4611686018427387904,16]", "[0,24]") "}", 24, &err), &err,
	         "more elements than can be counted");
	ck_fails(parse("{" T("a", "F32", "[4611686018427387904]", "[0,0]") "}", 0, &err), &err,
	         "does not fill");
	ck_fails(parse("{" T("a", "F32", "[1]", "[4,0]") "}", 24, &err), &err, "is no range");
	ck_fails(parse("{" T("a", "U8", "[4]", "[0,4]") "," T("b", "U8", "[4]", "[2,6]") "}", 6, &err), &err,
	         "tensor b overlaps tensor a");
	ck_fails(parse("{" T("a", "U8", "[4]", "[0,4]") "," T("b", "U8", "[4]", "[5,9]") "}", 9, &err), &err,
	         "tensor b: 1 bytes before it");
	ck_fails(parse("{" T("a", "U8", "[4]", "[0,4]") "}", 9, &err), &err, "5 bytes after the last tensor");
	ck_fails(parse("{" T("a", "U8", "[4]", "[0,4]") "," T("a", "U8", "[4]", "[4,8]") "}", 8, &err), &err,
	         "duplicate");
	ck_fails(parse("{\"a\":{}}", 0, &err), &err, "tensor a: dtype, shape and data_offsets");
	ck_fails(parse("{\"a\\nb\":{}}", 0, &err), &err, "control character");
	ck_fails(parse("[]", 0, &err), &err, "no JSON object");
	ck_fails(parse("{", 0, &err), &err, "not valid JSON");
}
END_TEST

START_TEST(a_short_file_is_named)
{
	struct safetensors *st = NULL;
	struct error err = ERROR_INIT;

	ck_fails(safetensors_parse("abc", 3, "x", &st, &err), &err, "x: 3 bytes are too few");
	ck_fails(safetensors_parse("\x10\0\0\0\0\0\0\0{}", 10, "x", &st, &err), &err,
	         "x: truncated: a header of 16");
	/* By one byte, and by as many as the length itself has. */
	for (char len = 3; len <= 10; len++) {
		const char file[10] = {len, 0, 0, 0, 0, 0, 0, 0, '{', '}'};

		ck_fails(safetensors_parse(file, sizeof(file), "x", &st, &err), &err,
		         "x: truncated: a header of");
	}
	ck_fails(safetensors_parse("\0\0\0\0\0\0\0\1{}", 10, "x", &st, &err), &err, "not a safetensors file");
	ck_fails(safetensors_open("/nonexistent/m", &st, &err), &err, "cannot read /nonexistent/m");
}
END_TEST

static int fill_ramp(void *context, size_t index, size_t offset, size_t len, void *buf, struct error *err)
{
	enum tensor_type type = *(enum tensor_type *)context;
	size_t size = tensor_type_size(type), first = offset / size;

	for (size_t i = 0; i < len / size; i++) {
		float f = (first + i) * 0.5f - index;
		uint16_t h = bf16_from_float(f);

		memcpy((char *)buf + i * size, size == 4 ? (void *)&f : (void *)&h, size);
	}
	return 0;
}

START_TEST(what_is_written_is_read_back)
{
	_cleanup_free_ char *dir = unit_tmpdir();
	_cleanup_(safetensors_closep) struct safetensors *st = NULL;
	enum tensor_type f32 = TENSOR_F32, bf16 = TENSOR_BF16;
	struct tensor_source s[] = {
	    {"w.big", TENSOR_F32, 2, {1100, 1000}, fill_ramp, &f32, 0},
	    {"w.half", TENSOR_BF16, 1, {100}, fill_ramp, &bf16, 1},
	    {"w.one", TENSOR_F32, 1, {3}, fill_ramp, &f32, 2},
	};
	const uint64_t limits[] = {0, 1000};
	struct error err = ERROR_INIT;
	float v[3];

	for (size_t k = 0; k < ARRAY_SIZE(limits); k++) {
		_cleanup_free_ char *sub = str_printf("%s/%zu", dir, k);

		ck_ok(file_mkdirs(sub, 0755, &err), &err);
		ck_ok(safetensors_write(sub, "model", s, 3, limits[k], &err), &err);
		ck_ok(safetensors_open(sub, &st, &err), &err);
		ck_assert_uint_eq(safetensors_count(st), 3);
		ck_assert_ptr_null(safetensors_find(st, "w"));
		ck_ok(tensor_to_f32(safetensors_find(st, "w.big"), 1099998, 2, v, &err), &err);
		ck_assert(v[0] == 549999.0f && v[1] == 549999.5f);
		ck_ok(tensor_to_f32(safetensors_find(st, "w.half"), 98, 2, v, &err), &err);
		ck_assert(v[0] == 48.0f && v[1] == 48.5f);
		ck_fails(tensor_to_f32(safetensors_find(st, "w.one"), 2, 2, v, &err), &err, "beyond its end");
		safetensors_close(steal_pointer(st));
	}
	ck_ok(file_remove_tree(dir, &err), &err);
}
END_TEST

/* How much memory of files this process has mapped and touched, in KiB. */
static long resident_of_files(void)
{
	_cleanup_fclose_ FILE *f = fopen("/proc/self/status", "re");
	char line[256];
	long kib = -1;

	ck_assert_ptr_nonnull(f);
	while (kib < 0 && fgets(line, sizeof(line), f))
		sscanf(line, "RssFile: %ld kB", &kib);
	ck_assert_int_ge(kib, 0);
	return kib;
}

START_TEST(a_model_that_is_loaded_takes_no_memory_twice)
{
	_cleanup_free_ char *dir = unit_tmpdir();
	_cleanup_(safetensors_closep) struct safetensors *st = NULL;
	enum { PIECE = 1 << 18, COUNT = 32 * PIECE };
	enum tensor_type f32 = TENSOR_F32, bf16 = TENSOR_BF16;
	const struct tensor_source s[] = {
	    {"w.a", TENSOR_F32, 1, {COUNT}, fill_ramp, &f32, 0},
	    {"w.b", TENSOR_BF16, 1, {COUNT}, fill_ramp, &bf16, 1},
	};
	_cleanup_free_ float *piece = malloc(PIECE * sizeof(*piece));
	struct error err = ERROR_INIT;
	long before;

	ck_assert_ptr_nonnull(piece);
	ck_ok(safetensors_write(dir, "model", s, ARRAY_SIZE(s), 0, &err), &err);
	ck_ok(safetensors_open(dir, &st, &err), &err);
	before = resident_of_files();
	for (size_t i = 0; i < ARRAY_SIZE(s); i++)
		for (int64_t first = 0; first < COUNT; first += PIECE) {
			struct model_parameter p = {.name = "w.a"};

			p.name[2] = i ? 'b' : 'a';
			ck_ok(parameters_fill(st, &p, first, PIECE, piece, &err), &err);
			ck_assert(piece[1] == (i ? bf16_to_float(bf16_from_float((first + 1) * 0.5f - i))
			                         : (first + 1) * 0.5f));
		}
	/* Of files of 48 MiB. */
	ck_assert_int_lt(resident_of_files() - before, 4096);
	ck_ok(file_remove_tree(dir, &err), &err);
}
END_TEST

START_TEST(an_index_may_not_lie)
{
	static const struct {
		const char *text, *words;
	} cases[] = {
	    {"{}", "weight_map is missing"},
	    {"{\"weight_map\":{\"a\":\"../m.safetensors\"}}", "not the name of a file beside the index"},
	    {"{\"weight_map\":{\"a\":\"none.safetensors\"}}", "cannot read"},
	    {"{\"weight_map\":{\"a\":\"m.safetensors\"}}", "tensor a is not in m.safetensors"},
	    {"{\"weight_map\":{\"w\":\"m.safetensors\",\"x\":\"m2.safetensors\"}}",
	     "tensor w is in two files"},
	};
	_cleanup_free_ char *dir = unit_tmpdir(), *index = str_path_join(dir, "model.safetensors.index.json");
	enum tensor_type f32 = TENSOR_F32;
	struct tensor_source s[] = {{"w", TENSOR_F32, 1, {3}, fill_ramp, &f32, 0},
	                            {"x", TENSOR_F32, 1, {3}, fill_ramp, &f32, 0}};
	struct safetensors *st = NULL;
	struct error err = ERROR_INIT;

	ck_fails(safetensors_open(dir, &st, &err), &err, "neither model.safetensors nor");
	ck_ok(safetensors_write(dir, "m", s, 1, 0, &err), &err);
	ck_ok(safetensors_write(dir, "m2", s, 2, 0, &err), &err);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		ck_ok(file_write_atomic(index, cases[i].text, strlen(cases[i].text), 0644, &err), &err);
		ck_fails(safetensors_open(dir, &st, &err), &err, cases[i].words);
	}
	ck_ok(file_remove_tree(dir, &err), &err);
}
END_TEST

START_TEST(halves_convert_exactly)
{
	struct error err = ERROR_INIT;
	float f, back;
	uint16_t h;

	for (uint32_t bits = 0; bits < 65536; bits++) {
		uint16_t in = bits;
		struct tensor t = {.name = "t", .type = TENSOR_F16, .data = &in, .bytes = 2};
		struct tensor u = {.name = "u", .type = TENSOR_F32, .data = &f, .bytes = 4};

		ck_ok(tensor_to_f32(&t, 0, 1, &f, &err), &err);
		if (isnan(f))
			continue;
		ck_ok(tensor_convert(&u, 0, 1, DTYPE_F16, &h, &err), &err);
		ck_assert_uint_eq(h, in);
		/* Just beside it in fp32 rounds to it too, unless that is a tie. */
		back = nextafterf(f, 0);
		u.data = &back;
		ck_ok(tensor_convert(&u, 0, 1, DTYPE_F16, &h, &err), &err);
		if (!isinf(f) && f != 0)
			ck_assert_uint_eq(h, in);
	}
}
END_TEST

/* A weight w of 2 x 65 elements in NF4: element i has the code i % 16, and block b the scale b + 1. With
 * double quantization the scales are 0.5 + 2 * map[255 - b]. */
struct nf4_file {
	bool nested;
	const char *state, *without;
};

static int open_nf4(const struct nf4_file *f, struct safetensors **st, struct error *err)
{
	_cleanup_strbuf_ struct strbuf header = {0}, data = {0}, file = {0};
	struct nf4_tables tables;
	uint8_t codes[65], absmax8[3] = {255, 254, 253};
	float absmax[3] = {1, 2, 3}, absmax2 = 2;
	const struct {
		const char *name, *type;
		const void *data;
		int64_t count;
		size_t bytes;
	} parts[] = {
	    {"w", "U8", codes, 65, 65},
	    {"w.absmax", f->nested ? "U8" : "F32", f->nested ? (void *)absmax8 : (void *)absmax, 3,
	     f->nested ? 3 : 12},
	    {"w.quant_map", "F32", tables.code, 16, 64},
	    {"w.nested_absmax", "F32", &absmax2, 1, 4},
	    {"w.nested_quant_map", "F32", tables.map, 256, 1024},
	    {"w.quant_state.bitsandbytes__nf4", "U8", f->state, (int64_t)strlen(f->state), strlen(f->state)},
	    {"norm", "F32", absmax, 3, 12}};
	static char bytes[4096]; /* what is opened refers to it */
	uint64_t len;

	nf4_tables_fill(&tables);
	for (int i = 0; i < 65; i++)
		codes[i] = (uint8_t)((2 * i % 16) << 4 | (2 * i + 1) % 16);
	for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
		if ((!f->nested && str_starts(parts[i].name, "w.nested")) ||
		    (f->without && str_eq(parts[i].name, f->without)))
			continue;
		strbuf_addf(&header,
		            "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRId64 "],\"data_offsets\":[%zu,%zu]}",
		            header.len ? ',' : '{', parts[i].name, parts[i].type, parts[i].count, data.len,
		            data.len + parts[i].bytes);
		strbuf_add(&data, parts[i].data, parts[i].bytes);
	}
	strbuf_addc(&header, '}');
	len = header.len;
	strbuf_add(&file, &len, sizeof(len));
	strbuf_add(&file, header.data, header.len);
	strbuf_add(&file, data.data, data.len);
	*err = (struct error)ERROR_INIT;
	ck_assert_uint_le(file.len, sizeof(bytes));
	memcpy(bytes, file.data, file.len);
	return safetensors_parse(bytes, file.len, "x.safetensors", st, err);
}

#define NF4_PLAIN "{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"bfloat16\",\"shape\":[2,65]}"
#define NF4_NESTED                                                                                           \
	"{\"quant_type\":\"nf4\",\"blocksize\":64,\"shape\":[2,65],\"nested_blocksize\":256,\"nested_"       \
	"offset\":0.5}"

START_TEST(a_weight_in_nf4_is_one_tensor)
{
	struct nf4_tables tables;
	struct error err = ERROR_INIT;

	nf4_tables_fill(&tables);
	for (int nested = 0; nested < 2; nested++) {
		_cleanup_(safetensors_closep) struct safetensors *st = NULL;
		static const struct hf_parameter want[] = {{"w", 2, {2, 65}, false, false},
		                                           {"norm", 1, {3}, false, false}};
		const struct nf4_file f = {nested, nested ? NF4_NESTED : NF4_PLAIN, NULL};
		const struct tensor *w;
		float all[130], part[67];

		ck_ok(open_nf4(&f, &st, &err), &err);
		ck_assert_uint_eq(safetensors_count(st), 2);
		ck_ok(hf_check(st, "m", want, 2, &err), &err);
		w = safetensors_find(st, "w");
		ck_assert_int_eq(w->type, TENSOR_NF4);
		ck_assert_int_eq(tensor_elements(w), 130);
		ck_ok(tensor_to_f32(w, 0, 130, all, &err), &err);
		ck_ok(tensor_to_f32(w, 63, 67, part, &err), &err);
		for (int i = 0; i < 130; i++) {
			float scale = nested ? 0.5f + 2 * tables.map[255 - i / 64] : (float)(i / 64 + 1);

			ck_assert_float_eq(all[i], tables.code[i % 16] * scale);
			ck_assert(i < 63 || part[i - 63] == all[i]);
		}
		ck_fails(tensor_to_f32(w, 130, 1, all, &err), &err, "beyond its end");
		ck_ok(tensor_turned_to_f32(w, 3, 67, part, &err), &err);
		for (int i = 0; i < 67; i++)
			ck_assert_float_eq(part[i], all[(i + 3) % 2 * 65 + (i + 3) / 2]);
		ck_fails(tensor_turned_to_f32(w, 130, 1, all, &err), &err, "beyond its end");
		ck_fails(tensor_turned_to_f32(safetensors_find(st, "norm"), 0, 1, all, &err), &err,
		         "not a matrix");
	}
}
END_TEST

START_TEST(a_wrong_part_of_a_weight_in_nf4_is_named)
{
	static const struct {
		struct nf4_file file;
		const char *words;
	} cases[] = {
	    {{false, NF4_PLAIN, "w.absmax"}, "tensor w.absmax is missing"},
	    {{false, NF4_PLAIN, "w.quant_map"}, "tensor w.quant_map is missing"},
	    {{false, NF4_PLAIN, "w"}, "tensor w is missing beside w.quant_state"},
	    {{true, NF4_NESTED, "w.nested_quant_map"}, "tensor w.nested_quant_map is missing"},
	    {{true, NF4_PLAIN, NULL}, "tensor w.absmax: 3 elements of U8; 3 of F32 are needed"},
	    {{false, "{\"quant_type\":\"fp4\",\"blocksize\":64,\"shape\":[2,65]}", NULL}, "quant_type nf4"},
	    {{false, "{\"quant_type\":\"nf4\",\"blocksize\":128,\"shape\":[2,65]}", NULL}, "blocksize of 64"},
	    {{false, "{\"quant_type\":\"nf4\",\"blocksize\":64,\"shape\":[2,66]}", NULL},
	     "tensor w: 65 bytes of U8; 132 elements in 4 bits need 66 of U8"},
	    {{false, "{\"quant_type\":\"nf4\",\"blocksize\":64,\"shape\":[2,-1]}", NULL}, "a list of sizes"},
	    {{false, "{\"quant_type\":\"nf4\",\"blocksize\":64}", NULL}, "a list of sizes"},
	    {{false, "nothing", NULL}, "w.quant_state.bitsandbytes__nf4"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(safetensors_closep) struct safetensors *st = NULL;
		struct error err = ERROR_INIT;

		ck_fails(open_nf4(&cases[i].file, &st, &err), &err, cases[i].words);
	}
}
END_TEST

START_TEST(a_model_names_what_does_not_fit)
{
	static const struct hf_parameter fits[] = {{"model.w", 2, {2, 3}, false, false},
	                                           {"model.b", 1, {2}, false, false}};
	static const struct hf_parameter lacks[] = {{"model.w", 2, {2, 3}, false, false},
	                                            {"model.c", 1, {2}, false, false}};
	static const struct hf_parameter shape[] = {{"model.w", 2, {3, 2}, false, false},
	                                            {"model.b", 1, {2}, false, false}};
	enum tensor_type f32 = TENSOR_F32;
	const struct tensor_source s[] = {
	    {"model.w", TENSOR_F32, 2, {2, 3}, fill_ramp, &f32, 0},
	    {"model.b", TENSOR_F32, 1, {2}, fill_ramp, &f32, 0},
	    {"lm_head.weight", TENSOR_F32, 1, {2}, fill_ramp, &f32, 0},
	    {"model.layers.0.self_attn.rotary_emb.inv_freq", TENSOR_F32, 1, {2}, fill_ramp, &f32, 0},
	    {"mtp.fc.weight", TENSOR_F32, 1, {2}, fill_ramp, &f32, 0},
	};
	const struct tensor_source bare[] = {{"w", TENSOR_F32, 2, {2, 3}, fill_ramp, &f32, 0},
	                                     {"b", TENSOR_F32, 1, {2}, fill_ramp, &f32, 0}};
	_cleanup_free_ char *dir = unit_tmpdir();
	struct safetensors *st = NULL;
	struct error err = ERROR_INIT;

	ck_ok(safetensors_write(dir, "model", s, ARRAY_SIZE(s), 0, &err), &err);
	ck_ok(safetensors_open(dir, &st, &err), &err);
	ck_ok(hf_check(st, "m", fits, 2, &err), &err);
	ck_fails(hf_check(st, "m", lacks, 2, &err), &err,
	         "m: 1 of the model's 2 tensors are missing: model.c");
	ck_fails(hf_check(st, "m", fits, 1, &err), &err, "no place for: model.b");
	ck_fails(hf_check(st, "m", shape, 2, &err), &err,
	         "m: tensor model.w has shape [2, 3]; the model needs [3, 2]");
	safetensors_close(st);
	ck_ok(safetensors_write(dir, "model", bare, 2, 0, &err), &err);
	ck_ok(safetensors_open(dir, &st, &err), &err);
	ck_ok(hf_check(st, "m", fits, 2, &err), &err);
	ck_assert_str_eq(hf_find(st, "model.b")->name, "b");
	safetensors_close(st);
	ck_ok(file_remove_tree(dir, &err), &err);
}
END_TEST

static void save_one(const char *out, int64_t step, struct error *err)
{
	_cleanup_free_ char *tmp = NULL, *name = str_printf("checkpoint-%lld", (long long)step),
	                    *inner = NULL;
	_cleanup_json_ json_t *history = json_array();
	struct checkpoint_state state = {
	    .step = step, .steps = 100, .epoch = 0.5, .epochs = 2, .world_size = 2, .fingerprint = "f"};
	struct checkpoint_log log = {step, 0.5, 1.25, 1e-4, 0.1, NAN};

	state.log_history = history;
	ck_ok(checkpoint_log_add(history, &log, err), err);
	ck_ok(checkpoint_begin(tmp = checkpoint_tmp(out, name, 1), err), err);
	inner = str_path_join(tmp, "dtrain");
	ck_assert_int_eq(mkdir(inner, 0755), 0);
	ck_ok(checkpoint_state_save(tmp, &state, true, err), err);
	ck_ok(checkpoint_publish(out, name, tmp, err), err);
	ck_assert(!file_exists(tmp));
}

START_TEST(checkpoints_are_found_kept_and_cleaned)
{
	_cleanup_free_ char *out = unit_tmpdir(), *path = NULL, *tmp = NULL;
	_cleanup_free_ char *foreign = str_path_join(out, "checkpoint-900"), *gone = NULL, *kept = NULL;
	_cleanup_json_ json_t *owner = NULL, *history = NULL;
	struct checkpoint_state state;
	struct error err = ERROR_INIT;
	int64_t step = -1;
	bool used;

	ck_ok(checkpoint_find("/nonexistent/out", INT64_MAX, &path, &step, &err), &err);
	ck_ok(checkpoint_find(out, INT64_MAX, &path, &step, &err), &err);
	ck_assert_ptr_null(path);
	ck_ok(checkpoint_output_in_use(out, &used, &err), &err);
	ck_assert(!used);
	save_one(out, 5, &err);
	save_one(out, 20, &err);
	save_one(out, 100, &err);
	save_one(out, 100, &err); /* replaces */
	ck_assert_int_eq(mkdir(foreign, 0755), 0);
	ck_ok(checkpoint_begin(tmp = checkpoint_tmp(out, "checkpoint-200", 1), &err), &err);
	ck_ok(checkpoint_find(out, INT64_MAX, &path, &step, &err), &err);
	ck_assert_int_eq(step, 100);
	ck_ok(checkpoint_clean(out, &err), &err);
	ck_assert(!file_exists(tmp));
	free(path);
	ck_ok(checkpoint_find(out, 100, &path, &step, &err), &err);
	ck_assert_int_eq(step, 20);
	free(path);
	ck_ok(checkpoint_find(out, 5, &path, &step, &err), &err);
	ck_assert_ptr_null(path);
	ck_ok(checkpoint_find(out, INT64_MAX, &path, &step, &err), &err);
	/* A run that has gone back to step 20 removes neither that one nor what lies before it. */
	ck_ok(checkpoint_prune(out, 2, 20, &err), &err);
	ck_ok(checkpoint_prune(out, 1, 5, &err), &err);
	gone = str_path_join(out, "checkpoint-5");
	ck_assert(file_exists(gone));
	free(gone);
	ck_ok(checkpoint_prune(out, 2, 100, &err), &err);
	gone = str_path_join(out, "checkpoint-5");
	ck_assert(!file_exists(gone));
	kept = str_path_join(out, "checkpoint-20");
	ck_assert(file_exists(kept));
	ck_assert(file_exists(foreign));
	ck_ok(checkpoint_state_load(path, &state, &owner, &err), &err);
	history = state.log_history;
	ck_assert_int_eq(state.step, 100);
	ck_assert_int_eq(state.world_size, 2);
	ck_assert_str_eq(state.fingerprint, "f");
	ck_assert_uint_eq(json_array_size(history), 1);
	ck_ok(checkpoint_output_in_use(out, &used, &err), &err);
	ck_assert(used);
	free(steal_pointer(path));
	ck_ok(checkpoint_remove_all(out, &err), &err);
	ck_ok(checkpoint_find(out, INT64_MAX, &path, &step, &err), &err);
	ck_assert_ptr_null(path);
	ck_assert(file_exists(foreign));
	ck_ok(file_remove_tree(out, &err), &err);
}
END_TEST

START_TEST(one_run_at_a_time_claims_an_output)
{
	_cleanup_free_ char *out = unit_tmpdir();
	struct claim first = {out, "17", 1, NULL, 0, NULL}, again = {out, "17", 2, NULL, 0, NULL},
	             other = {out, "4", 1, NULL, 0, NULL}, third = {out, "7", 1, NULL, 0, NULL},
	             other_again = {out, "4", 2, NULL, 0, NULL};
	struct error err = ERROR_INIT;
	bool ours = true, used = true;
	int fd = -1, second = -1;

	ck_ok(claim_take(&first, &fd, &ours, &err), &err);
	ck_assert(!ours);
	ck_ok(claim_mark(&first, fd, &err), &err);
	ck_ok(claim_check(&first, fd, &err), &err);
	ck_ok(checkpoint_output_in_use(out, &used, &err), &err);
	ck_assert(!used);
	ck_assert_int_eq(claim_take(&other, &second, &ours, &err), -EBUSY);
	ck_assert_ptr_nonnull(strstr(err.message, "run 17"));
	closep(&fd);

	/* A later attempt knows its own; an older one that still runs somewhere may publish no more. */
	ck_ok(claim_take(&again, &fd, &ours, &err), &err);
	ck_assert(ours);
	ck_ok(claim_mark(&again, fd, &err), &err);
	ck_ok(claim_check(&again, fd, &err), &err);
	ck_assert_int_eq(claim_check(&first, -1, &err), -ESTALE);
	closep(&fd);
	ck_assert_int_eq(claim_take(&first, &fd, &ours, &err), -ESTALE);

	ck_ok(claim_take(&other, &fd, &ours, &err), &err);
	ck_assert(!ours);
	ck_ok(claim_mark(&other, fd, &err), &err);
	ck_assert_int_eq(claim_check(&again, -1, &err), -ESTALE);
	closep(&fd);

	/* The first one starts again: what is there now is of the other. A run that never wrote there may
	 * have it. */
	ck_assert_int_eq(claim_take(&again, &fd, &ours, &err), -ESTALE);
	ck_assert_ptr_nonnull(strstr(err.message, "belongs to run 4"));
	ck_ok(claim_take(&third, &fd, &ours, &err), &err);
	ck_assert(!ours);
	ck_ok(claim_mark(&third, fd, &err), &err);
	closep(&fd);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(claim_take(i ? &other_again : &again, &fd, &ours, &err), -ESTALE);
	ck_assert_ptr_nonnull(strstr(err.message, "belongs to run 7"));
	ck_ok(claim_take(&third, &fd, &ours, &err), &err);
	ck_assert(ours);
	closep(&fd);
	ck_ok(file_remove_tree(out, &err), &err);
}
END_TEST

/* Files of a run that ended before its first checkpoint; most files with these names but without a run belong
 * to others. */
START_TEST(leftovers_before_a_checkpoint_are_no_use)
{
	/* Those from metrics.jsonl on are a run's where one has marked the directory. */
	static const char *const names[] = {"cache",
	                                    "algorithms.json",
	                                    "attention-failed-forward",
	                                    "checkpoint-probe-3.tmp",
	                                    "checkpoint-probe-3.tmp.tmp.812",
	                                    "metrics.jsonl",
	                                    "runs",
	                                    "metrics.jsonl.12",
	                                    "completions.jsonl",
	                                    "completions.jsonl.3",
	                                    "completions.jsonl.tmp.812",
	                                    "checkpoint-5.tmp",
	                                    "model.tmp",
	                                    "reference.logps",
	                                    "metrics.jsonl.tmp.812"};
	_cleanup_free_ char *out = unit_tmpdir(), *notes = str_path_join(out, "notes.txt");
	struct claim claim = {out, "17", 1, NULL, 0, NULL};
	struct error err = ERROR_INIT;
	bool ours, used = true;
	int fd = -1;

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		_cleanup_free_ char *path = str_path_join(out, names[i]);

		ck_assert_int_eq(mkdir(path, 0755), 0);
		ck_ok(checkpoint_output_in_use(out, &used, &err), &err);
		ck_assert_int_eq(used, i > 4);
	}
	ck_ok(claim_take(&claim, &fd, &ours, &err), &err);
	ck_ok(checkpoint_output_in_use(out, &used, &err), &err);
	ck_assert(used);
	ck_ok(claim_mark(&claim, fd, &err), &err);
	closep(&fd);
	ck_ok(checkpoint_output_in_use(out, &used, &err), &err);
	ck_assert(!used);
	ck_assert_int_eq(mkdir(notes, 0755), 0);
	ck_ok(checkpoint_output_in_use(out, &used, &err), &err);
	ck_assert(used);
	ck_ok(file_remove_tree(out, &err), &err);
}
END_TEST

/* A process that is killed while it writes a file leaves what it has written under another name. */
START_TEST(unfinished_files_are_removed)
{
	static const char *const names[] = {"metrics.jsonl.tmp.4242",
	                                    "reference.logps.tmp.1",
	                                    "completions.jsonl.tmp.5",
	                                    "algorithms.json.tmp.77",
	                                    "checkpoint-probe-0.tmp.tmp.31",
	                                    "checkpoint-5.7.tmp", /* from here on they stay */
	                                    "metrics.jsonl",
	                                    "metrics.jsonl.12",
	                                    "reference.logps.tmp.",
	                                    "notes.tmp.5",
	                                    "reference.logps.12",
	                                    "77"};
	_cleanup_free_ char *out = unit_tmpdir();
	struct error err = ERROR_INIT;

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		_cleanup_free_ char *path = str_path_join(out, names[i]);

		ck_ok(file_write_atomic(path, "x", 1, 0644, &err), &err);
	}
	ck_ok(checkpoint_clean(out, &err), &err);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		ck_assert_msg(file_exists_in(out, names[i]) == (i > 5), "%s", names[i]);
	ck_ok(file_remove_tree(out, &err), &err);
}
END_TEST

/* Two clusters count from 1 each; one whose store was restored counts some numbers once more, in a later
 * epoch. */
START_TEST(a_claim_is_of_one_cluster)
{
	_cleanup_free_ char *out = unit_tmpdir();
	struct claim first = {out, "17", 1, "a1", 3, NULL}, elsewhere = {out, "17", 2, "b2", 1, NULL},
	             restored = {out, "17", 1, "a1", 5, NULL}, next = {out, "17", 2, "a1", 6, NULL};
	struct error err = ERROR_INIT;
	bool ours = true;
	int fd = -1;

	ck_ok(claim_take(&first, &fd, &ours, &err), &err);
	ck_ok(claim_mark(&first, fd, &err), &err);
	ck_ok(claim_check(&first, fd, &err), &err);
	ck_assert_int_eq(claim_check(&restored, fd, &err), -ESTALE);
	ck_assert_int_eq(claim_check(&elsewhere, fd, &err), -ESTALE);
	closep(&fd);
	ck_ok(claim_take(&elsewhere, &fd, &ours, &err), &err);
	ck_assert(!ours);
	closep(&fd);
	ck_ok(claim_take(&next, &fd, &ours, &err), &err);
	ck_assert(ours);
	closep(&fd);
	ck_ok(claim_take(&restored, &fd, &ours, &err), &err);
	ck_ok(claim_mark(&restored, fd, &err), &err);
	ck_assert_int_eq(claim_check(&first, -1, &err), -ESTALE);
	closep(&fd);
	ck_assert_int_eq(claim_take(&first, &fd, &ours, &err), -ESTALE);
	ck_assert_ptr_nonnull(strstr(err.message, "epoch 5"));
	ck_ok(file_remove_tree(out, &err), &err);
}
END_TEST

/* Tensors of 1000, 1000, 2400, 400 and 600 bytes: a file has as many as its limit allows, and one at least.
 */
START_TEST(tensors_are_divided_among_files)
{
	static const struct {
		uint64_t limit;
		size_t files[5]; /* of each tensor */
	} cases[] = {{0, {0, 0, 0, 0, 0}},    {5400, {0, 0, 0, 0, 0}}, {5399, {0, 0, 0, 0, 1}},
	             {2000, {0, 0, 1, 2, 2}}, {1999, {0, 1, 2, 3, 3}}, {999, {0, 1, 2, 3, 4}}};
	enum tensor_type f32 = TENSOR_F32;
	const struct tensor_source s[] = {{"a", TENSOR_F32, 1, {250}, fill_ramp, &f32, 0},
	                                  {"b", TENSOR_F32, 1, {250}, fill_ramp, &f32, 1},
	                                  {"c", TENSOR_F32, 2, {2, 300}, fill_ramp, &f32, 2},
	                                  {"d", TENSOR_BF16, 1, {200}, fill_ramp, &f32, 3},
	                                  {"e", TENSOR_BF16, 1, {300}, fill_ramp, &f32, 4}};
	const uint64_t bytes[] = {1000, 1000, 2400, 400, 600};
	struct error err = ERROR_INIT;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(safetensors_layout_free) struct safetensors_layout l = {0};
		const size_t *files = cases[i].files, count = files[4] + 1;
		uint64_t sizes[5] = {0};

		ck_ok(safetensors_layout("model", s, 5, cases[i].limit, &l, &err), &err);
		ck_assert_uint_eq(l.n_files, count);
		for (size_t k = 0; k < count; k++) {
			_cleanup_free_ char *name =
			    count == 1 ? strdup("model.safetensors")
			               : str_printf("model-%05zu-of-%05zu.safetensors", k + 1, count);

			ck_assert_str_eq(l.files[k].name, name);
			ck_assert_uint_eq(l.files[k].header_bytes % 8, 0);
			sizes[k] = l.files[k].header_bytes;
		}
		for (size_t k = 0; k < 5; k++) {
			ck_assert_uint_eq(l.places[k].file, files[k]);
			ck_assert_uint_eq(l.places[k].offset, sizes[files[k]]);
			sizes[files[k]] += bytes[k];
			if (count > 1)
				ck_assert_str_eq(
				    json_get_string(json_object_get(l.index, "weight_map"), s[k].name, ""),
				    l.files[files[k]].name);
		}
		for (size_t k = 0; k < count; k++)
			ck_assert_uint_eq(l.files[k].bytes, sizes[k]);
		ck_assert_int_eq(l.index != NULL, count > 1);
		if (l.index)
			ck_assert_int_eq(json_get_int(json_object_get(l.index, "metadata"), "total_size", 0),
			                 5400);
	}
}
END_TEST

/* No tensors are a file, too. */
START_TEST(a_file_may_have_no_tensors)
{
	_cleanup_(safetensors_layout_free) struct safetensors_layout l = {0};
	struct error err = ERROR_INIT;

	ck_ok(safetensors_layout("model", NULL, 0, 0, &l, &err), &err);
	ck_assert_uint_eq(l.n_files, 1);
	ck_assert_str_eq(l.files[0].name, "model.safetensors");
	ck_assert_uint_eq(l.files[0].bytes, l.files[0].header_bytes);
}
END_TEST

START_TEST(a_final_model_replaces_an_older_one)
{
	_cleanup_free_ char *out = unit_tmpdir(), *metrics = str_path_join(out, "metrics.jsonl");
	_cleanup_free_ char *index = str_path_join(out, "model.safetensors.index.json");
	enum tensor_type f32 = TENSOR_F32;
	const struct tensor_source s[] = {{"w", TENSOR_F32, 1, {300}, fill_ramp, &f32, 0},
	                                  {"x", TENSOR_F32, 1, {300}, fill_ramp, &f32, 0}};
	const uint64_t limits[] = {1000, 0, 2000, 1000};
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(metrics, "{}\n", 3, 0644, &err), &err);
	for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
		_cleanup_(safetensors_closep) struct safetensors *st = NULL;
		_cleanup_free_ char *tmp = NULL;

		ck_ok(checkpoint_begin(tmp = checkpoint_tmp(out, "model", 1), &err), &err);
		ck_ok(safetensors_write(tmp, "model", s, 2, limits[i], &err), &err);
		ck_ok(checkpoint_publish_files(out, tmp, &err), &err);
		ck_assert(!file_exists(tmp));
		ck_assert_int_eq(file_exists(index), limits[i] != 0);
		ck_ok(safetensors_open(out, &st, &err), &err);
		ck_assert_uint_eq(safetensors_count(st), 2);
	}
	ck_assert(file_exists(metrics));
	ck_ok(file_remove_tree(out, &err), &err);
}
END_TEST

static void put(const char *directory, const char *name, const char *text)
{
	_cleanup_free_ char *path = str_path_join(directory, name);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, text, strlen(text), 0644, &err), &err);
}

#define MODEL_CONFIG "{\"model_type\":\"llama\"}"

/* The outputs of runs that follow each other in one directory: of a model, an adapter, a model with another
 * tokenizer. */
START_TEST(what_an_older_output_has_is_removed)
{
	static const struct {
		const char *stem, *files[5];
	} outputs[] = {
	    {"model", {"config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"}},
	    {"adapter_model", {"adapter_config.json", "tokenizer.json", "added_tokens.json"}},
	    {"model", {"config.json", "tokenizer.json", "vocab.json", "merges.txt"}},
	};
	static const char *const others[] = {"README.md",     "metrics.jsonl", "my_config.json",
	                                     "tokenizer.txt", "model.conf",    "vocabulary.json"};
	_cleanup_free_ char *out = unit_tmpdir();
	enum tensor_type f32 = TENSOR_F32;
	const struct tensor_source s[] = {{"w", TENSOR_F32, 1, {3}, fill_ramp, &f32, 0}};
	struct error err = ERROR_INIT;

	for (size_t i = 0; i < ARRAY_SIZE(others); i++)
		put(out, others[i], "{}");
	for (size_t i = 0; i < 2 * ARRAY_SIZE(outputs); i++) {
		size_t k = i % ARRAY_SIZE(outputs), expected = 1 + ARRAY_SIZE(others), there = 0;
		_cleanup_free_ char *tmp = NULL, *weights = str_printf("%s.safetensors", outputs[k].stem);
		_cleanup_closedir_ DIR *d = NULL;

		ck_ok(checkpoint_begin(tmp = checkpoint_tmp(out, "model", 1), &err), &err);
		ck_ok(safetensors_write(tmp, outputs[k].stem, s, 1, 0, &err), &err);
		for (size_t f = 0; outputs[k].files[f]; f++, expected++)
			put(tmp, outputs[k].files[f], MODEL_CONFIG);
		ck_ok(checkpoint_publish_files(out, tmp, &err), &err);
		ck_assert(file_exists_in(out, weights));
		for (size_t f = 0; outputs[k].files[f]; f++)
			ck_assert(file_exists_in(out, outputs[k].files[f]));
		for (size_t f = 0; f < ARRAY_SIZE(others); f++)
			ck_assert(file_exists_in(out, others[f]));
		ck_assert_ptr_nonnull(d = opendir(out));
		for (struct dirent *e; (e = readdir(d));)
			there += e->d_name[0] != '.';
		ck_assert_uint_eq(there, expected);
	}
	ck_ok(file_remove_tree(out, &err), &err);
}
END_TEST

/* A config.json that no run can have written, since it is no model's. */
START_TEST(a_configuration_of_something_else_stays)
{
	static const char *const texts[] = {"{\"name\":\"mine\"}", "no JSON", "[]", MODEL_CONFIG};

	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		_cleanup_free_ char *out = unit_tmpdir(), *tmp = NULL;
		struct error err = ERROR_INIT;

		put(out, "config.json", texts[i]);
		ck_ok(checkpoint_begin(tmp = checkpoint_tmp(out, "model", 1), &err), &err);
		put(tmp, "adapter_config.json", "{}");
		ck_ok(checkpoint_publish_files(out, tmp, &err), &err);
		ck_assert_int_eq(file_exists_in(out, "config.json"), !str_eq(texts[i], MODEL_CONFIG));
		ck_ok(file_remove_tree(out, &err), &err);
	}
}
END_TEST

/* Files may have the head of a model that ties it alone; a model that does not tie it lacks its embedding. */
START_TEST(a_tied_model_may_be_stored_as_its_head)
{
	static const struct hf_parameter tied[] = {{"model.embed_tokens.weight", 2, {3, 2}, false, true}};
	static const struct hf_parameter untied[] = {{"model.embed_tokens.weight", 2, {3, 2}, false, false},
	                                             {"lm_head.weight", 2, {3, 2}, false, false}};
	static const struct hf_parameter wide[] = {{"model.embed_tokens.weight", 2, {3, 4}, false, true}};
	static const struct model_parameter p = {.name = "model.embed_tokens.weight",
	                                         .dims = 2,
	                                         .shape = {3, 2},
	                                         .count = 6,
	                                         .tied_embedding = true};
	enum tensor_type f32 = TENSOR_F32;
	const struct tensor_source s[] = {{"lm_head.weight", TENSOR_F32, 2, {3, 2}, fill_ramp, &f32, 0}};
	_cleanup_(safetensors_closep) struct safetensors *st = NULL;
	_cleanup_free_ char *dir = unit_tmpdir();
	struct error err = ERROR_INIT;
	float got[6], want[6];

	ck_ok(safetensors_write(dir, "model", s, 1, 0, &err), &err);
	ck_ok(safetensors_open(dir, &st, &err), &err);
	ck_ok(hf_check(st, "m", tied, 1, &err), &err);
	ck_fails(hf_check(st, "m", untied, 2, &err), &err, "tensors are missing: model.embed_tokens.weight");
	ck_fails(hf_check(st, "m", wide, 1, &err), &err,
	         "m: tensor lm_head.weight has shape [3, 2]; the model needs [3, 4]");
	ck_ok(tensor_to_f32(safetensors_find(st, "lm_head.weight"), 0, 6, want, &err), &err);
	ck_ok(parameters_fill(st, &p, 0, 6, got, &err), &err);
	ck_assert_int_eq(memcmp(got, want, sizeof(got)), 0);
	ck_ok(file_remove_tree(dir, &err), &err);
}
END_TEST

#define ROWS 1100 /* of 1000, more than are compared at once */

/* The ramp, but for its last element. */
static int fill_other_end(void *context, size_t index, size_t offset, size_t len, void *buf,
                          struct error *err)
{
	int r = fill_ramp(context, index, offset, len, buf, err);

	if (r == 0 && offset + len == ROWS * 1000 * sizeof(float))
		memset((char *)buf + len - sizeof(float), 0, sizeof(float));
	return r;
}

/* Files of tied models may have the head, too, if it is the embedding: transformers 4 drops another one, and
 * transformers 5 does not tie it. */
START_TEST(a_tied_head_of_its_own_is_refused)
{
	static enum tensor_type f32 = TENSOR_F32, bf16 = TENSOR_BF16;
	static const struct {
		const char *embedding;
		int rows, columns, head_rows;
		struct tensor_source head;
		bool refused;
	} cases[] = {
	    {"model.embed_tokens.weight",
	     3,
	     2,
	     3,
	     {.type = TENSOR_F32, .fill = fill_ramp, .context = &f32},
	     false},
	    {"embed_tokens.weight",
	     3,
	     2,
	     3,
	     {.type = TENSOR_BF16, .fill = fill_ramp, .context = &bf16},
	     false},
	    {"model.embed_tokens.weight",
	     ROWS,
	     1000,
	     ROWS,
	     {.type = TENSOR_F32, .fill = fill_ramp, .context = &f32},
	     false},
	    {"model.embed_tokens.weight",
	     ROWS,
	     1000,
	     ROWS,
	     {.type = TENSOR_F32, .fill = fill_other_end, .context = &f32},
	     true},
	    {"embed_tokens.weight",
	     3,
	     2,
	     3,
	     {.type = TENSOR_BF16, .fill = fill_ramp, .context = &bf16, .index = 1},
	     true},
	    {"model.embed_tokens.weight",
	     3,
	     2,
	     4,
	     {.type = TENSOR_F32, .fill = fill_ramp, .context = &f32},
	     true},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct hf_parameter p = {.name = "model.embed_tokens.weight",
		                         .dims = 2,
		                         .shape = {cases[i].rows, cases[i].columns},
		                         .tied_embedding = true};
		struct tensor_source s[] = {
		    {cases[i].embedding, TENSOR_F32, 2, {p.shape[0], p.shape[1]}, fill_ramp, &f32, 0},
		    cases[i].head};
		_cleanup_(safetensors_closep) struct safetensors *st = NULL;
		_cleanup_free_ char *dir = unit_tmpdir();
		struct error err = ERROR_INIT;

		s[1].name = "lm_head.weight";
		s[1].dims = 2;
		s[1].shape[0] = cases[i].head_rows;
		s[1].shape[1] = cases[i].columns;
		mark_point();
		ck_ok(safetensors_write(dir, "model", s, 2, 0, &err), &err);
		ck_ok(safetensors_open(dir, &st, &err), &err);
		if (cases[i].refused)
			ck_fails(hf_check(st, "m", &p, 1, &err), &err,
			         "m: tensor lm_head.weight differs from");
		else
			ck_ok(hf_check(st, "m", &p, 1, &err), &err);
		/* Where the model does not tie it, it is not compared. */
		p.tied_embedding = false;
		ck_ok(hf_check(st, "m", &p, 1, &err), &err);
		ck_ok(file_remove_tree(dir, &err), &err);
	}
}
END_TEST

START_TEST(crc32c_is_castagnolis)
{
	ck_assert_uint_eq(tfevents_crc32c("123456789", 9), 0xe3069283);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("checkpoint");
	TCase *t = tcase_create("checkpoint");

	tcase_add_test(t, every_promise_of_a_header_is_checked);
	tcase_add_test(t, a_short_file_is_named);
	tcase_add_test(t, what_is_written_is_read_back);
	tcase_add_test(t, a_model_that_is_loaded_takes_no_memory_twice);
	tcase_add_test(t, tensors_are_divided_among_files);
	tcase_add_test(t, a_file_may_have_no_tensors);
	tcase_add_test(t, an_index_may_not_lie);
	tcase_add_test(t, halves_convert_exactly);
	tcase_add_test(t, a_weight_in_nf4_is_one_tensor);
	tcase_add_test(t, a_wrong_part_of_a_weight_in_nf4_is_named);
	tcase_add_test(t, a_model_names_what_does_not_fit);
	tcase_add_test(t, checkpoints_are_found_kept_and_cleaned);
	tcase_add_test(t, leftovers_before_a_checkpoint_are_no_use);
	tcase_add_test(t, unfinished_files_are_removed);
	tcase_add_test(t, one_run_at_a_time_claims_an_output);
	tcase_add_test(t, a_claim_is_of_one_cluster);
	tcase_add_test(t, a_final_model_replaces_an_older_one);
	tcase_add_test(t, what_an_older_output_has_is_removed);
	tcase_add_test(t, a_configuration_of_something_else_stays);
	tcase_add_test(t, a_tied_model_may_be_stored_as_its_head);
	tcase_add_test(t, a_tied_head_of_its_own_is_refused);
	tcase_add_test(t, crc32c_is_castagnolis);
	suite_add_tcase(s, t);
	return unit_run(s);
}
