/* Unit tests of words.c: every size of word, length, alignment and place of a match. */
#include "words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures, checks;

static void check(size_t found, size_t expected, const char *what, size_t size, size_t count)
{
    checks++;
    if (found != expected) {
        failures++;
        fprintf(stderr, "%s, %zu words of %zu bytes: %zu, not %zu\n", what, count, size, found, expected);
    }
}

/* Words without a match, one put at `place`, `place` + 1 and the end; `shift` bytes off alignment. */
static void look(const struct am_pattern *pattern, size_t count, size_t place, size_t shift)
{
    size_t size = pattern->size, nbytes = size * count, i;
    unsigned char *block = malloc(nbytes + shift + 1), *data = block + shift;
    uint64_t word = pattern->value | 1; /* a NaN, say: more bits than those of the pattern */

    for (i = 0; i < nbytes; i++)
        data[i] = (unsigned char)(i * 7 % 31); /* never all ones in a byte that the mask covers */
    check(am_first_match(data, nbytes, pattern), count, "none", size, count);
    /* A rest shorter than a word is no word, and nothing behind the end is read. */
    if (count > 0 && size > 1)
        check(am_first_match(data, nbytes - 1, pattern), count - 1, "a rest", size, count);
    if (place < count) {
        memcpy(data + (count - 1) * size, &word, size);
        check(am_first_match(data, nbytes, pattern), count - 1, "the last", size, count);
        if (place + 1 < count)
            memcpy(data + (place + 1) * size, &word, size);
        memcpy(data + place * size, &word, size);
        check(am_first_match(data, nbytes, pattern), place, "the first", size, count);
    }
    free(block);
}

int main(void)
{
    static const struct am_pattern patterns[] = {
        {1, 0x7c, 0x7c},
        {2, 0x7c00, 0x7c00},
        {4, 0x7f800000, 0x7f800000},
        {8, 0x7ff0000000000000, 0x7ff0000000000000},
    };
    static const size_t counts[] = {0, 1, 2, 31, 32, 33, 1023, 1024, 1025, 2048, 5000};
    size_t p, c, shift;

    for (p = 0; p < sizeof patterns / sizeof *patterns; p++) {
        int before = failures;

        for (c = 0; c < sizeof counts / sizeof *counts; c++)
            for (shift = 0; shift < 3; shift++) {
                look(&patterns[p], counts[c], 0, shift);
                look(&patterns[p], counts[c], counts[c] / 2, shift);
                look(&patterns[p], counts[c], 1024, shift);
            }
        printf("%s words_of_%zu_bytes\n", failures == before ? "ok    " : "NOT OK", patterns[p].size);
    }
    printf("%d checks, %d failed\n", checks, failures);
    return failures != 0;
}
