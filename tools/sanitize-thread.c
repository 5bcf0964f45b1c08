// What ThreadSanitizer does not see of a Rust program whose standard library is not instrumented. The linker puts these
// functions in the place of others (`--wrap`); `tools/sanitize` compiles them, and finds the names of the library's.
//
// An acquire fence orders what follows after the releases that this thread's relaxed reads have seen; the sanitizer takes it for
// no order at all, so that the last owner of an `Arc` seems to race with the others. Here it acquires from the places that the
// thread looked at lately, by a load or a subtraction of 64 bits: that is where the counters of owners are.
//
// A `Mutex` that somebody else has, a `Once`, and the end of a scope's thread are handled within the library.
#include <stdint.h>

extern void __tsan_acquire(void *place);
extern void __tsan_release(void *place);

extern uint64_t __real___tsan_atomic64_load(const volatile uint64_t *place, int order);
extern uint64_t __real___tsan_atomic64_fetch_sub(volatile uint64_t *place, uint64_t value, int order);
extern void __real___tsan_atomic_thread_fence(int order);

enum { KEPT = 64 };
static __thread uintptr_t seen[KEPT];
static __thread unsigned looks;

static void saw(const volatile uint64_t *place) {
    seen[looks++ % KEPT] = (uintptr_t)place;
}

uint64_t __wrap___tsan_atomic64_load(const volatile uint64_t *place, int order) {
    saw(place);
    return __real___tsan_atomic64_load(place, order);
}

uint64_t __wrap___tsan_atomic64_fetch_sub(volatile uint64_t *place, uint64_t value, int order) {
    saw(place);
    return __real___tsan_atomic64_fetch_sub(place, value, order);
}

void __wrap___tsan_atomic_thread_fence(int order) {
    __real___tsan_atomic_thread_fence(order);
    for (unsigned at = 0; at < KEPT && seen[at] != 0; at++)
        __tsan_acquire((void *)seen[at]);
}

#define JOINED(a, b) a##b
#define REAL(name) JOINED(__real_, name)
#define WRAP(name) JOINED(__wrap_, name)

// `Mutex::lock_contended(&self)`: gives the lock, whose word comes first.
extern void REAL(LOCK_CONTENDED)(void *mutex);
void WRAP(LOCK_CONTENDED)(void *mutex) {
    REAL(LOCK_CONTENDED)(mutex);
    __tsan_acquire(mutex);
}

// `Once::call(&self, ignore_poisoning, closure)`: what the closure wrote is there for who sees the word at the start.
extern void REAL(ONCE_CALL)(void *once, uintptr_t ignore, void *closure, void *methods, void *caller);
void WRAP(ONCE_CALL)(void *once, uintptr_t ignore, void *closure, void *methods, void *caller) {
    REAL(ONCE_CALL)(once, ignore, closure, methods, caller);
    __tsan_release(once);
    __tsan_acquire(once);
}

// `ScopeData::decrement_num_running_threads(&self, panicked)`: the scope looks at the number, the first or second word.
extern void REAL(THREAD_ENDS)(uint64_t *scope, uintptr_t panicked);
void WRAP(THREAD_ENDS)(uint64_t *scope, uintptr_t panicked) {
    __tsan_release(scope);
    __tsan_release(scope + 1);
    REAL(THREAD_ENDS)(scope, panicked);
}
