// The server's events, again and again: a connection that was lost is made anew, for as long as the page is open.

const RETRY_MILLISECONDS = 2000;
// A server that says nothing for so long hangs, or is cut off without a word: ask again.
const SILENCE_MILLISECONDS = 15000;
const LATE_MILLISECONDS = 6000;

/**
 * Call `handlers.status`, `.history` and `.end` with what comes, and `.link(state, since)` about the connection once a
 * second: "connecting", "live", "late", "full" or "lost"; `since`: when the last event came, or null.
 */
export function follow(handlers) {
  let source = null;
  let last = null;
  let asked = 0;
  let state = "connecting";

  const tell = (next) => {
    state = next;
    handlers.link(state, last);
  };

  const open = () => {
    source?.close();
    asked = Date.now();
    const opened = new EventSource("events");
    source = opened;
    const listen = (name, handle) =>
      opened.addEventListener(name, (event) => {
        last = Date.now();
        if (state !== "live") tell("live");
        handle(JSON.parse(event.data));
      });
    listen("status", handlers.status);
    listen("history", handlers.history);
    opened.addEventListener("end", () => {
      handlers.end();
      tell("lost");
    });
    opened.addEventListener("error", async () => {
      const next = opened.readyState === EventSource.CLOSED && (await isFull()) ? "full" : "lost";
      if (source === opened) tell(next);
    });
  };

  // A browser does not tell a page what the answer was, so it is asked for once more.
  const isFull = async () => {
    try {
      return (await fetch("events", { method: "HEAD" })).status === 503;
    } catch {
      return false; // no server answers
    }
  };

  setInterval(() => {
    const now = Date.now();
    const quiet = now - Math.max(last ?? 0, asked);
    const isClosed = source.readyState === EventSource.CLOSED;
    if ((isClosed && now - asked > RETRY_MILLISECONDS) || quiet > SILENCE_MILLISECONDS) open();
    if (state === "live" && quiet > LATE_MILLISECONDS) tell("late");
    else handlers.link(state, last);
  }, 1000);
  open();
}
