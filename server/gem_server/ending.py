"""When a server that ends with its run may end. A decision, no more: it takes the clock, and returns its reason."""


def reason_to_exit(
    now: float,
    *,
    finished_at: float,
    last_join: float | None,
    sessions: int,
    watchers: int,
    linger: float,
    grace: float,
) -> str | None:
    """Return why a server whose run is finished need not wait any longer; None: it must.

    Args:
        now: seconds, on the clock of `finished_at` and `last_join`.
        finished_at: when the run was finished, or when serving began if it was finished before this process.
        last_join: when a worker joined last; None: none has since this process started.
        sessions: workers that are joined.
        watchers: calls of WatchStatus, which are owed the report that says how the run ended, or stay for what they
            still have to read.
        linger: seconds after the last join in which further workers may still come.
        grace: seconds to wait for those who do not come, do not leave, or go on watching.
    """
    patience = max(grace, linger)
    if now - finished_at >= patience:
        if sessions or watchers:
            return f"{sessions} workers and {watchers} watchers have not left for {patience:g} s"
        if last_join is None:
            return f"no worker has come for {patience:g} s"
        return "all workers have left"
    if last_join is None or sessions or watchers or now - last_join < linger:
        return None
    return "all workers have left"
