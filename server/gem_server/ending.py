"""When a server with `exit_when_finished` exits."""


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
    """Return why a server with a finished run can exit; None: it must wait.

    Times are in seconds. `finished_at`: when serving began, if finished before. `linger`: wait for further joins;
    `grace`: wait for workers and watchers. Watchers must receive the final report.
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
