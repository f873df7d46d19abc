/* SPDX-License-Identifier: Apache-2.0 */
/* Functions on a separate stack, one after another, which may be suspended and resumed. */
#ifndef SIMT_FIBER_H
#define SIMT_FIBER_H

#include <cstddef>
#include <memory>

#include <ucontext.h>

namespace simt
{

class fiber
{
  public:
    fiber();
    ~fiber();
    fiber(const fiber &) = delete;
    fiber &operator=(const fiber &) = delete;

    /* The next `resume` starts it. A suspended function is abandoned. */
    void begin(void (*function)(void *), void *argument);
    /* Runs it until it pauses or returns. */
    void resume();
    /* From inside: returns to the caller of resume. */
    void pause();
    bool is_over() const
    {
        return over;
    }

  private:
    static void enter(unsigned low, unsigned high);
    void make_context();
    [[noreturn]] void run();
    void go(bool in);
    __attribute__((noreturn, noinline, no_sanitize("address"), no_sanitize("thread"))) void leave(bool in);

    std::unique_ptr<char[]> stack;
    ucontext_t inside;
    void *inner[5], *outer[5]; /* __builtin_setjmp buffers: of the suspended function, and of the resume call */
    bool has_context = false, has_begun = false;
    void (*function)(void *) = nullptr;
    void *argument = nullptr;
    bool over = true;
    /* for sanitizers' stack switching */
    [[maybe_unused]] void *fake_stack = nullptr, *outside_fake_stack = nullptr;
    [[maybe_unused]] const void *outside_stack = nullptr;
    [[maybe_unused]] std::size_t outside_bytes = 0;
    [[maybe_unused]] void *thread = nullptr, *outside_thread = nullptr;
};

} // namespace simt

#endif
