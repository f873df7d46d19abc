/* A function with a stack of its own, which may stop in the middle and go on later. */
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

    /* The next `resume` begins it. What it was in the middle of is forgotten. */
    void begin(void (*function)(void *), void *argument);
    /* Until it pauses or is over. */
    void resume();
    /* From within, back to whoever resumed it. */
    void pause();
    bool is_over() const
    {
        return over;
    }

  private:
    static void enter(unsigned low, unsigned high);
    void run();
    void go(bool in);
    __attribute__((noreturn, noinline, no_sanitize("address"), no_sanitize("thread"))) void leave(bool in);

    std::unique_ptr<char[]> stack;
    ucontext_t inside;
    void *inner[5], *outer[5]; /* where it was left, and whence it was entered: the compiler's own jumps */
    bool has_begun = false;
    void (*function)(void *) = nullptr;
    void *argument = nullptr;
    bool over = true;
    /* what sanitizers want to know */
    void *fake_stack = nullptr, *outside_fake_stack = nullptr;
    const void *outside_stack = nullptr;
    std::size_t outside_bytes = 0;
    void *thread = nullptr, *outside_thread = nullptr;
};

} // namespace simt

#endif
