/* Parses the keys of texts (text_key.h), and checks UTF-8 and the names of collections. */
#include "corpus/text_key.h"

#include <string.h>

static const char TEXT[] = "paragraphs:";
static const char DEFAULT[] = "default";
enum { TEXT_LENGTH = sizeof TEXT - 1, MAX_COLLECTION = 64 };

static bool has_brace(const char *text, size_t length) {
    return memchr(text, '{', length) || memchr(text, '}', length);
}

/* Returns where the `:{tag}` at the end of a document's key starts. NULL: the key has no such end. */
static const char *find_tag(const char *key, size_t length) {
    if (length < TEXT_LENGTH + 4 || key[length - 1] != '}') return NULL;
    const char *opening = memchr(key, '{', length), *end = key + length - 1;
    if (!opening || opening + 1 >= end || opening <= key + TEXT_LENGTH || opening[-1] != ':') return NULL;
    if (has_brace(opening + 1, (size_t)(end - opening - 1)) || memchr(key, '}', (size_t)(opening - key))) return NULL;
    return opening - 1;
}

/* Returns the length of the UTF-8 sequence at `text`. 0: the sequence is invalid. */
static size_t sequence(const unsigned char *text, size_t length) {
    unsigned char first = text[0];
    size_t size = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    if (size > length) return 0;
    for (size_t i = 1; i < size; i++)
        if ((text[i] & 0xC0) != 0x80) return 0;
    /* an encoding with more bytes than necessary, a surrogate, or a number above the last code point */
    if ((first == 0xE0 && text[1] < 0xA0) || (first == 0xED && text[1] > 0x9F)) return 0;
    if ((first == 0xF0 && text[1] < 0x90) || (first == 0xF4 && text[1] > 0x8F)) return 0;
    return size;
}

bool text_is_utf8(const char *text, size_t length) {
    size_t size = 0;
    for (size_t at = 0; at < length; at += size) {
        size = sequence((const unsigned char *)text + at, length - at);
        if (!size) return false;
    }
    return true;
}

static bool is_letter_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

bool text_is_collection(const char *name, size_t length) {
    if (!length || length > MAX_COLLECTION || !is_letter_or_digit(name[0])) return false;
    for (size_t i = 1; i < length; i++)
        if (!is_letter_or_digit(name[i]) && name[i] != '_' && name[i] != '-') return false;
    return length != sizeof DEFAULT - 1 || memcmp(name, DEFAULT, length) != 0;
}

/* True: `name` identifies a document in keys: its encoded id, alone or after `<collection>%/`. */
static bool is_name(const char *name, size_t length) {
    const char *end = name + length, *percent = memchr(name, '%', length);
    if (percent && end - percent > 1 && percent[1] == '/') {
        if (!text_is_collection(name, (size_t)(percent - name))) return false;
        percent = memchr(percent + 2, '%', (size_t)(end - percent - 2));
    }
    for (; percent; percent = memchr(percent + 3, '%', (size_t)(end - percent - 3))) {
        if (end - percent < 3) return false;
        if (memcmp(percent, "%25", 3) != 0 && memcmp(percent, "%7B", 3) != 0 && memcmp(percent, "%7D", 3) != 0)
            return false;
    }
    return true;
}

bool text_key_may_be(const char *key, size_t length) {
    return length >= TEXT_LENGTH && memcmp(key, TEXT, TEXT_LENGTH) == 0;
}

bool text_key_parse(RedisModuleString *key, TextKey *parsed) {
    size_t length;
    const char *text = RedisModule_StringPtrLen(key, &length);
    if (!text_key_may_be(text, length)) return false;
    const char *end = find_tag(text, length), *name = text + TEXT_LENGTH;
    if (!end || end == name || !is_name(name, (size_t)(end - name)) || !text_is_utf8(text, length)) return false;
    size_t name_length = (size_t)(end - name);
    const char *percent = memchr(name, '%', name_length);
    bool is_named = percent && percent + 1 < end && percent[1] == '/';
    *parsed = (TextKey){.name = name,
                        .name_length = name_length,
                        .collection_length = is_named ? (size_t)(percent - name) : 0,
                        .tag = end + 1,
                        .tag_length = length - (size_t)(end + 1 - text)};
    return true;
}

RedisModuleString *text_key_joined(const char *start, const char *middle, size_t length, const char *end,
                                   size_t end_length) {
    RedisModuleString *made = RedisModule_CreateString(NULL, start, strlen(start));
    if (length) RedisModule_StringAppendBuffer(NULL, made, middle, length);
    if (end_length) RedisModule_StringAppendBuffer(NULL, made, end, end_length);
    return made;
}
