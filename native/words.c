/* See words.h. */
#include "words.h"

#include <string.h>

/* Words looked at before it is asked whether one of them matched: within one step there is no
 * branch, so that the compiler compares many words in one instruction. */
#define STEP 1024

#define LOOK(name, type, attribute)                                                                \
    attribute static size_t name(const unsigned char *data, size_t count, uint64_t m, uint64_t v)  \
    {                                                                                              \
        const type mask = (type)m, value = (type)v;                                                \
        size_t at = 0;                                                                             \
                                                                                                   \
        while (at < count) {                                                                       \
            size_t i, stop = count - at < STEP ? count : at + STEP;                                \
            type found = 0, word;                                                                  \
            for (i = at; i < stop; i++) {                                                          \
                memcpy(&word, data + i * sizeof word, sizeof word);                                \
                found |= (type)((word & mask) == value);                                           \
            }                                                                                      \
            if (found)                                                                             \
                for (i = at; i < stop; i++) {                                                      \
                    memcpy(&word, data + i * sizeof word, sizeof word);                            \
                    if ((word & mask) == value)                                                    \
                        return i;                                                                  \
                }                                                                                  \
            at = stop;                                                                             \
        }                                                                                          \
        return count;                                                                              \
    }

#define LOOKS(suffix, attribute)                                                                   \
    LOOK(look_1##suffix, uint8_t, attribute)                                                       \
    LOOK(look_2##suffix, uint16_t, attribute)                                                      \
    LOOK(look_4##suffix, uint32_t, attribute)                                                      \
    LOOK(look_8##suffix, uint64_t, attribute)

typedef size_t look(const unsigned char *, size_t, uint64_t, uint64_t);

LOOKS(, )
static look *const plain[] = {look_1, look_2, look_4, look_8};

#if defined(__x86_64__) && defined(__GNUC__)
/* The same loops for processors that compare 32 bytes at once: built beside, chosen at run time. */
LOOKS(_avx2, __attribute__((target("avx2"))))
static look *const wide[] = {look_1_avx2, look_2_avx2, look_4_avx2, look_8_avx2};

static look *const *looks(void)
{
    return __builtin_cpu_supports("avx2") ? wide : plain;
}
#else
static look *const *looks(void)
{
    return plain;
}
#endif

size_t am_first_match(const void *data, size_t nbytes, const struct am_pattern *pattern)
{
    int kind = pattern->size == 1 ? 0 : pattern->size == 2 ? 1 : pattern->size == 4 ? 2 : 3;

    return looks()[kind](data, nbytes / pattern->size, pattern->mask, pattern->value);
}
