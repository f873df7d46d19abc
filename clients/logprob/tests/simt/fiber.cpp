/* SPDX-License-Identifier: Apache-2.0 */
#include "fiber.h"

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
}
#endif

namespace simt
{

static const std::size_t STACK_BYTES = 128 * 1024;

fiber::fiber() : stack(new char[STACK_BYTES])
{
}

fiber::~fiber()
{
#if defined(__SANITIZE_THREAD__)
    if (thread != nullptr)
        __tsan_destroy_fiber(thread);
#endif
}

void fiber::enter(unsigned low, unsigned high)
{
    const uintptr_t address = static_cast<uintptr_t>(static_cast<uint64_t>(high) << 32 | low);
    reinterpret_cast<fiber *>(address)->run();
}

void fiber::begin(void (*f)(void *), void *a)
{
    function = f;
    argument = a;
    if (!over || !has_context)
        make_context();
    over = false;
}

void fiber::make_context()
{
    const uint64_t address = reinterpret_cast<uintptr_t>(this);
    fake_stack = nullptr;
    has_begun = false;
    has_context = true;
    getcontext(&inside);
    inside.uc_stack.ss_sp = stack.get();
    inside.uc_stack.ss_size = STACK_BYTES;
    inside.uc_link = nullptr;
    makecontext(&inside, reinterpret_cast<void (*)()>(enter), 2, static_cast<unsigned>(address),
                static_cast<unsigned>(address >> 32));
#if defined(__SANITIZE_THREAD__)
    if (thread != nullptr)
        __tsan_destroy_fiber(thread);
    thread = __tsan_create_fiber(0);
#endif
}

void fiber::run()
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &outside_stack, &outside_bytes);
#endif
    for (;;) { /* one function after another, so that only the first one needs a context */
        function(argument);
        over = true;
        go(false);
    }
}

void fiber::resume()
{
    go(true);
}

void fiber::pause()
{
    go(false);
}

/* Only the first entry uses a context: switching contexts changes the signal mask, which takes two system calls. */
void fiber::leave(bool in)
{
    if (in && !has_begun) {
        has_begun = true;
        setcontext(&inside);
    }
    __builtin_longjmp(in ? inner : outer, 1);
}

/* Switches in or out. Returns when the other side switches back. */
void fiber::go(bool in)
{
#if defined(__SANITIZE_ADDRESS__)
    void **kept = in ? &outside_fake_stack : &fake_stack;
    if (in)
        __sanitizer_start_switch_fiber(kept, stack.get(), STACK_BYTES);
    else
        __sanitizer_start_switch_fiber(kept, outside_stack, outside_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    if (in)
        outside_thread = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(in ? thread : outside_thread, 0);
#endif
    if (__builtin_setjmp(in ? outer : inner) == 0)
        leave(in);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(*kept, in ? nullptr : &outside_stack, in ? nullptr : &outside_bytes);
#endif
}

} // namespace simt
