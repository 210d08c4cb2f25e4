/* SIGTERM: readers are told that this process's stores are closing, then it ends as it
 * would have. Only where the program left the signal's default action in force. */
#include "progress.h"

#include "run.h"
#include "segment.h"

#include <signal.h>
#include <unistd.h>

static atomic_int asked; /* 0, or the process that was */

static void die(void)
{
    (void)signal(SIGTERM, SIG_DFL);
    (void)kill(getpid(), SIGTERM);
}

/* Async-signal-safe. A second signal doesn't wait for the first one's news. */
static void on_sigterm(int number)
{
    (void)number;
    if (atomic_exchange(&asked, (int)getpid()) || !ddstore__progress_wake())
        die();
}

void ddstore__sigterm_work(ddstore__server *server)
{
    if (!atomic_load(&asked))
        return;
    ddstore__segment_close_all();
    ddstore__run_close_all();
    ddstore__server_tell_closing(server);
    die();
}

void ddstore__sigterm_child(void)
{
    if (atomic_exchange(&asked, 0) == (int)getpid())
        die(); /* it came before the parent's wake event was closed here */
}

void ddstore_announce_sigterm(void)
{
    struct sigaction now, ours = {.sa_handler = on_sigterm, .sa_flags = SA_RESTART};
    sigemptyset(&ours.sa_mask);
    if (sigaction(SIGTERM, NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) &&
        now.sa_handler == SIG_DFL)
        (void)sigaction(SIGTERM, &ours, NULL);
}
