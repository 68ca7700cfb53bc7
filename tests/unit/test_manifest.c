/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of a checkpoint's files: as they are written, what is refused, and files that are not what was
 * listed. */
#include "failing_memory.h"

#include <string.h>

#include "base/str.h"
#include "engine/checkpoint/manifest.h"

#define PART(name, offset, bytes) "[\"" name "\"," #offset "," #bytes ",\"00000000000000ff\"]"
#define FILES(files)              "{\"version\":1,\"files\":[" files "]}"
#define ONE(name, bytes, parts)   "{\"name\":\"" name "\",\"bytes\":" #bytes ",\"parts\":[" parts "]}"

static const struct {
	const char *text, *words; /* NULL: it is accepted */
} lists[] = {
    {FILES(""), NULL},
    {FILES(ONE("a/b..c", 12, PART("t", 4, 8) "," PART("", 12, 0))), NULL},
    {"{", "f:1: not valid JSON"},
    {"[]", "f: files: not as dtrain writes it"},
    {"{\"version\":0,\"files\":[]}", "f: files: not as dtrain writes it"},
    {"{\"version\":2,\"files\":[]}", "f: version 2; this dtrain reads 1"},
    {"{\"version\":1,\"files\":{}}", "f: files: not as dtrain writes it"},
    {FILES("{\"name\":\"a\",\"bytes\":1}"), "f: files: not as dtrain writes it"},
    {FILES(ONE("", 1, "")), "f: files: not as dtrain writes it"},
    {FILES(ONE("/a", 1, "")), "f: files: not as dtrain writes it"},
    {FILES(ONE("..", 1, "")), "f: files: not as dtrain writes it"},
    {FILES(ONE("../a", 1, "")), "f: files: not as dtrain writes it"},
    {FILES(ONE("a/../b", 1, "")), "f: files: not as dtrain writes it"},
    {FILES(ONE("a/..", 1, "")), "f: files: not as dtrain writes it"},
    {FILES(ONE("a", -1, "")), "f: files: not as dtrain writes it"},
    {FILES(ONE("a", 1.5, "")), "f: files: not as dtrain writes it"},
    {FILES(ONE("a", 12, PART("t", 4, 9))), "f: a: not as dtrain writes it"},
    {FILES(ONE("a", 12, PART("t", 13, 0))), "f: a: not as dtrain writes it"},
    {FILES(ONE("a", 12, PART("t", -1, 0))), "f: a: not as dtrain writes it"},
    {FILES(ONE("a", 12, "[\"t\",0,12]")), "f: a: not as dtrain writes it"},
    {FILES(ONE("a", 12, "[\"t\",0,12,\"0ff\"]")), "f: a: not as dtrain writes it"},
    {FILES(ONE("a", 12, "[\"t\",0,12,\"00000000000000fF\"]")), "f: a: not as dtrain writes it"},
    {FILES(ONE("a", 12, "[3,0,12,\"00000000000000ff\"]")), "f: a: not as dtrain writes it"},
};

START_TEST(a_list_is_checked)
{
	struct manifest m;
	struct error err = ERROR_INIT;
	int r = manifest_parse(lists[_i].text, strlen(lists[_i].text), "f", &m, &err);

	if (lists[_i].words)
		ck_fails(r, &err, lists[_i].words);
	else
		ck_ok(r, &err);
	if (r == 0 && m.n) {
		ck_assert_str_eq(m.files[0].name, "a/b..c");
		ck_assert_uint_eq(m.files[0].bytes, 12);
		ck_assert_uint_eq(m.files[0].n, 2);
		ck_assert_uint_eq(m.files[0].parts[0].offset, 4);
		ck_assert_uint_eq(m.files[0].parts[0].bytes, 8);
		ck_assert_uint_eq(m.files[0].parts[0].hash, 255);
	}
	manifest_free(&m);
}
END_TEST

static void replace(char *text, const char *from, const char *to)
{
	char *at = strstr(text, from);

	ck_assert_ptr_nonnull(at);
	memcpy(at, to, strlen(to));
}

START_TEST(an_index_is_what_was_saved)
{
	struct manifest_rank ranks[] = {{"n1", 10, 0xabc}, {"n2", 0, 0}};
	struct manifest_index index = {.ranks = ranks, .world_size = 2}, again;
	_cleanup_free_ char *text = manifest_index_text(&index);
	static const char *const changes[][3] = {
	    {"\"n1\"", "\"n3\"", "f is not what was saved: the file is damaged"},
	    {"0000000000000abc", "0000000000000abd", "f is not what was saved"},
	    {"\"node\"", "\"nod_\"", "f: ranks: not as dtrain writes it"},
	    {"\"ranks\"", "\"rank_\"", "f: ranks: not as dtrain writes it"},
	    {"\"version\": 1", "\"version\": 9", "f: version 9; this dtrain reads 1"},
	};
	static const char none[] = "{\"version\":1,\"ranks\":[],\"hash\":\"0000000000000000\"}";
	struct error err = ERROR_INIT;

	ck_ok(manifest_index_parse(text, strlen(text), "f", &again, &err), &err);
	ck_assert_int_eq(again.world_size, 2);
	ck_assert_str_eq(again.ranks[0].node, "n1");
	ck_assert_uint_eq(again.ranks[0].bytes, 10);
	ck_assert_uint_eq(again.ranks[0].hash, 0xabc);
	ck_assert_str_eq(again.ranks[1].node, "n2");
	manifest_index_free(&again);
	for (size_t i = 0; i < ARRAY_SIZE(changes); i++) {
		_cleanup_free_ char *changed = strdup(text);

		replace(changed, changes[i][0], changes[i][1]);
		ck_fails(manifest_index_parse(changed, strlen(changed), "f", &again, &err), &err,
		         changes[i][2]);
		manifest_index_free(&again);
	}
	ck_fails(manifest_index_parse(none, strlen(none), "f", &again, &err), &err,
	         "f: ranks: not as dtrain writes it");
	manifest_index_free(&again);
}
END_TEST

#define CONTENT "headerAAAABBBBtail"

/* What is in the file, and what of it is named. */
static const struct {
	const char *content, *words;
} files[] = {
    {CONTENT, NULL},
    {"hEaderAAAABBBBtail", "its header is not what was saved: the file is damaged"},
    {"headerAAAaBBBBtail", "tensor a is not what was saved: the file is damaged"},
    {"headerAAAABBBbtail", "tensor b is not what was saved: the file is damaged"},
    {"headerAAAABBBBtaiL", "w.bin: is not what was saved: the file is damaged"},
    {CONTENT "x", "has 19 bytes, but 18 were saved: the file is damaged from its end on"},
    {"headerAAAABBB", "has 13 bytes, but 18 were saved: the file is damaged from b on"},
    {"headerAAA", "has 9 bytes, but 18 were saved: the file is damaged from a on"},
    {"headerAAAABBBB", "has 14 bytes, but 18 were saved: the file is damaged from its end on"},
    {NULL, "w.bin"},
};

START_TEST(files_are_compared_with_the_list)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_path_join(dir, "w.bin"), *text = NULL;
	struct manifest_part parts[] = {
	    {"header", 0, 6, manifest_hash(CONTENT, 6)},
	    {"a", 6, 4, manifest_hash("AAAA", 4)},
	    {"b", 10, 4, manifest_hash("BBBB", 4)},
	    {"", 14, 4, manifest_hash("tail", 4)},
	};
	struct manifest_file file = {"w.bin", strlen(CONTENT), parts, ARRAY_SIZE(parts)};
	struct manifest m = {.files = &file, .n = 1}, again;
	struct error err = ERROR_INIT;
	int r;

	if (files[_i].content)
		ck_ok(file_write_atomic(path, files[_i].content, strlen(files[_i].content), 0644, &err),
		      &err);
	/* The list as it was made, and as it was read again. */
	text = manifest_text(&m);
	ck_ok(manifest_parse(text, strlen(text), "f", &again, &err), &err);
	for (int k = 0; k < 2; k++) {
		r = manifest_check(k ? &again : &m, dir, &err);
		if (files[_i].words)
			ck_fails(r, &err, files[_i].words);
		else
			ck_ok(r, &err);
		ck_assert_int_eq(r, files[_i].words ? -EBADMSG : 0);
	}
	manifest_free(&again);
	file_remove_tree(dir, NULL);
}
END_TEST

/* Older checkpoints have these; and what is longer than a piece. */
START_TEST(hashes_stay_the_same)
{
	_cleanup_free_ char *data = calloc(1, MANIFEST_PIECE + 1);
	uint64_t one = manifest_hash(data, MANIFEST_PIECE), more = manifest_hash(data, MANIFEST_PIECE + 1);

	ck_assert_uint_eq(manifest_hash("", 0), 0);
	ck_assert_uint_eq(manifest_hash("abc", 3), 0x44bc2cf5ad770999u);
	ck_assert_uint_ne(one, more);
	data[MANIFEST_PIECE] = 1;
	ck_assert_uint_eq(manifest_hash(data, MANIFEST_PIECE), one);
	ck_assert_uint_ne(manifest_hash(data, MANIFEST_PIECE + 1), more);
	data[0] = 1;
	ck_assert_uint_ne(manifest_hash(data, MANIFEST_PIECE), one);
}
END_TEST

static int write_and_read(void *context, struct error *err)
{
	struct manifest_rank ranks[] = {{"n1", 10, 1}, {"n2", 0, 0}};
	struct manifest_index index = {.ranks = ranks, .world_size = 2}, index_again = {0};
	struct manifest m = {0};
	_cleanup_free_ char *text = manifest_index_text(&index);
	const char *list = context;
	int r = text ? 0 : error_oom(err);

	(void)(r < 0 || (r = manifest_index_parse(text, strlen(text), "f", &index_again, err)) < 0 ||
	       (r = manifest_parse(list, strlen(list), "f", &m, err)) < 0);
	manifest_index_free(&index_again);
	manifest_free(&m);
	return r;
}

START_TEST(memory_may_run_out)
{
	char list[] = FILES(ONE("a", 12, PART("t", 4, 8)) "," ONE("b", 12, PART("t", 4, 8)));

	memory_runs_out(write_and_read, list);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("manifest");
	TCase *t = tcase_create("manifest");

	tcase_add_loop_test(t, a_list_is_checked, 0, ARRAY_SIZE(lists));
	tcase_add_test(t, an_index_is_what_was_saved);
	tcase_add_loop_test(t, files_are_compared_with_the_list, 0, ARRAY_SIZE(files));
	tcase_add_test(t, hashes_stay_the_same);
	tcase_add_test(t, memory_may_run_out);
	suite_add_tcase(s, t);
	return unit_run(s);
}
