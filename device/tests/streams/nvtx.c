// A tool of NVTX: it checks the tables that the program gives it, and writes what it is told, each line with the number of
// the thread, to the file that NVTX_TEST_LOG names. NVTX_TEST_TOOL says what is odd about it: `fails`, or `marks` alone.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*function)(void);
struct callbacks {
    size_t size;
    int (*table)(unsigned module, function ***table, unsigned *size);
};
struct versions {
    size_t size;
    uint32_t version, reserved;
    void (*set)(uint32_t version);
};

static int threads;
static __thread int thread = -1;

static void say(const char *what, const char *text) {
    if (thread < 0)
        thread = __atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED);
    FILE *log = fopen(getenv("NVTX_TEST_LOG"), "a");
    fprintf(log, "%d %s%s\n", thread, what, text);
    fclose(log);
}

static void mark(const char *text) {
    say("mark ", text);
}

static int push(const char *text) {
    say("push ", text);
    return 0;
}

static int pop(void) {
    say("pop", "");
    return 0;
}

static void check(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "the tool finds that not: %s\n", what);
        abort();
    }
}

static void check_modules(const struct callbacks *callbacks) {
    const unsigned sizes[] = {16, 9, 15, 7, 16, 7};
    for (unsigned module = 1; module <= 6; module++) {
        function **table = NULL;
        unsigned size = 0;
        check(callbacks->table(module, &table, &size) == 1 && size == sizes[module - 1], "six modules");
        check(callbacks->table(module, NULL, NULL) == 1, "nobody has to ask for both");
        check(table[0] == NULL && table[size] == NULL, "nothing before the first and after the last");
        for (unsigned number = 1; number < size; number++)
            check(table[number] != NULL && *table[number] == NULL, "a cell for each function");
    }
    check(callbacks->table(0, NULL, NULL) == 0 && callbacks->table(7, NULL, NULL) == 0, "no other modules");
}

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t)) {
    const struct callbacks *callbacks = export_table(1);
    const struct versions *versions = export_table(3);
    check(callbacks->size == sizeof *callbacks && versions->size == sizeof *versions, "sizes");
    check(versions->version == 3 && export_table(0) == NULL && export_table(2) == NULL, "version 3");
    versions->set(3);
    check_modules(callbacks);
    const char *odd = getenv("NVTX_TEST_TOOL");
    function **table;
    callbacks->table(1, &table, NULL);
    *table[2] = (function)mark;
    if (strcmp(odd, "marks") != 0) {
        *table[9] = (function)push;
        *table[11] = (function)pop;
    }
    return strcmp(odd, "fails") != 0;
}
