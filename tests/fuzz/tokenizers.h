/* SPDX-License-Identifier: Apache-2.0 */
/* Small tokenizers: the 256 bytes and a few merges, or characters with byte fallback, under many kinds of
 * steps. */
#pragma once

#include "base/str.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/unicode.h"

#define FUZZ_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define FUZZ_SPLIT(regex)                                                                                    \
	"\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"      \
	"\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\",\"invert\":false}," FUZZ_LEVEL "]}"

static const struct {
	const char *parts;
	bool exact; /* decodes to what was encoded */
} fuzz_tokenizers[] = {
    {"\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}", true},
    {FUZZ_SPLIT("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "
                "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"),
     true},
    {FUZZ_SPLIT("[^\\\\s\\\\w]?[\\\\p{Lu}\\\\p{M}]*\\\\p{Ll}+|\\\\S|\\\\s+(?!\\\\S)|\\\\h+"), true},
    {"\"pre_tokenizer\":" FUZZ_LEVEL, true},
    {"\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"NFKD\"},{"
     "\"type\":"
     "\"Strip\"},{\"type\":\"Lowercase\"},{\"type\":\"StripAccents\"},{\"type\":\"Nmt\"},{\"type\":"
     "\"Replace\","
     "\"pattern\":{\"Regex\":\" *a?\"},\"content\":\"~\"}]},\"pre_tokenizer\":{\"type\":\"Sequence\","
     "\"pretokenizers\":[{\"type\":\"BertPreTokenizer\"},{\"type\":\"Digits\"},{\"type\":\"Whitespace\"}"
     "," FUZZ_LEVEL "]}",
     false},
    {"\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
     "\"\xe2\x96\x81\"},{"
     "\"type\":\"Replace\",\"pattern\":{\"String\":\" "
     "\"},\"content\":\"\xe2\x96\x81\"}]},\"decoder\":{\"type\":"
     "\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xe2\x96\x81\"},\"content\":"
     "\" \"},"
     "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "
     "\",\"start\":1,\"stop\":2}]}",
     false},
    {"\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":"
     "\"first\"},"
     "\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\"}",
     false},
};

/* Ids: bytes 0 … 255, merges of them, <0x00> … <0xFF>, U+2581; then added tokens with every flag. */
static inline int fuzz_tokenizer(const char *parts, struct tokenizer **out, struct error *err)
{
	_cleanup_strbuf_ struct strbuf b = {0};
	bool level = strstr(parts, "ByteLevel") != NULL, decoder = strstr(parts, "\"decoder\"") != NULL;
	char c[4];

	strbuf_addf(&b, "{%s,", parts);
	if (!decoder)
		strbuf_adds(&b, "\"decoder\":" FUZZ_LEVEL ",");
	strbuf_adds(&b, "\"added_tokens\":[");
	for (int i = 0; i < 6; i++)
		strbuf_addf(&b,
		            "%s{\"id\":%d,\"content\":\"%s\",\"lstrip\":%s,\"rstrip\":%s,\"single_word\":%s,"
		            "\"normalized\":%s,\"special\":%s}",
		            i ? "," : "", 518 + i,
		            (const char *[]){"<s>", "<L>", "<R>", "ab\xe4\xb8\x80", "WW", "<N>"}[i],
		            !level && i == 1 ? "true" : "false", !level && i == 2 ? "true" : "false",
		            i == 4 ? "true" : "false", i == 5 ? "true" : "false", i ? "false" : "true");
	strbuf_adds(&b, "],\"model\":{\"type\":\"BPE\",\"byte_fallback\":");
	strbuf_addf(&b, "%s,\"vocab\":{", level ? "false" : "true");
	for (int i = 0; i < 256; i++) {
		unsigned n = utf8_put(c, bytelevel_char((uint8_t)i));

		strbuf_addf(&b, c[0] == '"' || c[0] == '\\' ? "\"\\%.*s\":%d," : "\"%.*s\":%d,", (int)n, c,
		            i);
	}
	strbuf_adds(&b, "\"aa\":256,\"aab\":257,\"\xc4\xa0"
	                "a\":258,\"\xc4\xa0"
	                "aa\":259,\"ab\":260,");
	for (int i = 0; i < 256; i++)
		strbuf_addf(&b, "\"<0x%02X>\":%d,", i, 261 + i);
	strbuf_adds(
	    &b,
	    "\"\xe2\x96\x81\":517},\"merges\":[[\"a\",\"a\"],\"aa b\",[\"\xc4\xa0\",\"a\"],\"\xc4\xa0 aa\","
	    "\"a b\"]}}");
	if (b.failed)
		return error_oom(err);
	return tokenizer_parse(b.data, b.len, "fuzz", out, err);
}
