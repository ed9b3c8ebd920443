/*
 * Words: what Python would do to each of many arrays, done to all of them in one loop. Knows no
 * Python, no files and no file format; every function here reads memory and writes none.
 */
#ifndef AM_WORDS_H
#define AM_WORDS_H

#include <stddef.h>
#include <stdint.h>

/* One pattern of bits: a word matches where (word & mask) == value. `size` is the bytes of a word:
 * 1, 2, 4 or 8. Words are taken as they lie in memory, in the machine's byte order. */
struct am_pattern {
    size_t size;
    uint64_t mask;
    uint64_t value;
};

/* The index of the first word of `nbytes` at `data` (any alignment; a rest shorter than a word is
 * no word) that matches, or the number of words if none does. */
size_t am_first_match(const void *data, size_t nbytes, const struct am_pattern *pattern);

#endif
