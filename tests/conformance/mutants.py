"""Edits of the reference worker, as data: mutants break one rule of the contract each, and allowed variants none.

An edit replaces the text `old`, which the source of the worker must contain exactly once, by `new`. `more` has further
pairs of such texts.
"""

from typing import NamedTuple

__all__ = ["ALLOWED_VARIANTS", "MUTANTS", "OPTIONAL_MUTANTS", "AllowedVariant", "Mutant"]


class Mutant(NamedTuple):
    """A worker that breaks a rule.

    Attributes:
        name: a short description of the mistake.
        rule: the rule that it breaks.
        scenario: the scenario that shows the mistake.
        fault: the name of the fault that the kit must report.
        old, new, more: the edits.
    """

    name: str
    rule: str
    scenario: str
    fault: str
    old: str
    new: str
    more: tuple[tuple[str, str], ...] = ()


class AllowedVariant(NamedTuple):
    """A worker that does something in another way than the reference worker, which the contract allows too.

    Attributes:
        name: a short description of the difference.
        scenarios: the scenarios that it must pass.
        old, new, more: the edits.
    """

    name: str
    scenarios: tuple[str, ...]
    old: str
    new: str
    more: tuple[tuple[str, str], ...] = ()


# Edits of examples/workers/python/reference_worker.py.
MUTANTS = [
    # --- Join
    Mutant(
        "short-session-id",
        "a session id has 16 bytes",
        "pull",
        "WRONG_JOIN",
        "self.session_id = os.urandom(16)",
        "self.session_id = os.urandom(8)",
    ),
    Mutant(
        "new-session-at-each-join",
        "the session id is kept over reconnects",
        "dropped-reply",
        "WRONG_SESSION",
        "        request = session_pb2.JoinRequest(\n",
        "        self.session_id = os.urandom(16)\n        request = session_pb2.JoinRequest(\n",
    ),
    Mutant(
        "session-id-of-the-name",
        "the session id is random",
        "killed-worker",
        "REPEATED_SESSION_ID",
        "self.session_id = os.urandom(16)",
        "self.session_id = self.name.encode().rjust(16)[-16:]",
    ),
    Mutant(
        "constant-name",
        "the worker's name is that of GEMPS_WORKER_NAME",
        "pull",
        "WRONG_JOIN",
        "worker_name=self.name",
        'worker_name="worker"',
    ),
    Mutant(
        "no-aliases",
        "a tensor's aliases are part of the layout",
        "buffers-frozen",
        "WRONG_LAYOUT",
        'aliases=tensor.get("aliases", ())',
        "aliases=()",
    ),
    Mutant(
        "first-alias-alone",
        "all aliases are part of the layout",
        "names",
        "WRONG_LAYOUT",
        'aliases=tensor.get("aliases", ())',
        'aliases=tensor.get("aliases", ())[:1]',
    ),
    Mutant(
        "ascii-names",
        "names are UTF-8",
        "names",
        "WRONG_LAYOUT",
        'name=tensor["name"]',
        'name=tensor["name"].encode("ascii", "replace").decode()',
    ),
    Mutant(
        "no-hash-of-frozen",
        "FROZEN tensors have a SHA-256",
        "buffers-frozen",
        "WRONG_LAYOUT",
        'sha256=bytes.fromhex(tensor.get("sha256", ""))',
        'sha256=bytes(32 if tensor["kind"] == "frozen" else 0)',
    ),
    Mutant(
        "offers-what-the-task-does-not-have",
        "Join offers the wire types of the task",
        "pull",
        "WRONG_OFFER",
        'delta_wire_types=offer(self.task["delta_wire_types"])',
        "delta_wire_types=[3]",
    ),
    Mutant(
        "announces-local-steps",
        "a worker announces only features that it has",
        "local-steps",
        "IGNORED_LOCAL_STEPS",
        "worker_name=self.name,",
        'worker_name=self.name, features=["local-steps"],',
    ),
    Mutant(
        "announces-early-proceed",
        "after an early proceed no other proceed comes",
        "early-proceed",
        "IGNORED_EARLY_PROCEED",
        "worker_name=self.name,",
        'worker_name=self.name, features=["early-proceed"],',
    ),
    # --- Initialize
    Mutant(
        "initializes-always",
        "a worker initializes only if there are no parameters",
        "pull",
        "UNEXPECTED_CALL",
        "if not joined.has_parameters:",
        "if True:",
    ),
    Mutant(
        "never-initializes",
        "a worker initializes if there are no parameters",
        "initialise",
        "NO_PROGRESS",
        "if not joined.has_parameters:",
        "self.pause = 0.01\n        if False:",
    ),
    Mutant(
        "initializes-with-zeros",
        "the first parameters are the task's",
        "initialise",
        "WRONG_VALUES",
        "self.theta = ((np.arange(self.count) % 509 - 254) / 256)",
        "self.theta = np.zeros(self.count)",
    ),
    Mutant(
        "initializes-without-buffers",
        "a payload contains the BUFFERs",
        "buffers-first",
        "WRONG_SIZE",
        "payload = self.theta.tobytes() + self.buffers\n            header = p",
        "payload = self.theta.tobytes()\n            header = p",
    ),
    Mutant(
        "trains-without-a-pull",
        "parameters come from Pull",
        "pull",
        "STALE_BASE",
        'self.receive(self.server.Pull(parameters_pb2.PullRequest(session_id=self.session_id)), "header")',
        "self.base = transfer_pb2.Version()",
    ),
    # --- what is sent
    Mutant(
        "no-footer",
        "a payload has a footer",
        "initialise",
        "NO_FOOTER",
        "yield kind(footer=transfer_pb2.Footer(crc32c=google_crc32c.value(payload)))",
        "return",
    ),
    Mutant(
        "footer-in-the-middle",
        "the footer comes after all bytes",
        "commit-large",
        "WRONG_SIZE",
        "payload[start : start + CHUNK_BYTES]",
        "payload[start : min(start + CHUNK_BYTES, len(payload) - 4)]",
    ),
    Mutant(
        "crc32-of-zip",
        "checksums are CRC32C",
        "commit-small",
        "WRONG_CHECKSUM",
        "transfer_pb2.Footer(crc32c=google_crc32c.value(payload))",
        'transfer_pb2.Footer(crc32c=__import__("zlib").crc32(payload))',
    ),
    Mutant(
        "one-chunk",
        "a chunk has at most 2 MiB",
        "commit-huge",
        "TOO_LARGE",
        "CHUNK_BYTES = 64 * 1024, 1024 * 1024",
        "CHUNK_BYTES = 64 * 1024, 1 << 24",
    ),
    Mutant(
        "chunk-just-above-the-limit",
        "a chunk has at most 2 MiB",
        "commit-huge",
        "WRONG_CHUNK",
        "CHUNK_BYTES = 64 * 1024, 1024 * 1024",
        "CHUNK_BYTES = 64 * 1024, (2 << 20) + 1",
    ),
    Mutant(
        "chunk-sent-twice",
        "each byte is sent once",
        "commit-large",
        "WRONG_CHUNK",
        "        yield kind(chunk=payload[start : start + CHUNK_BYTES])",
        "        yield kind(chunk=payload[start : start + CHUNK_BYTES])\n"
        "        if len(payload) > WHOLE_BYTES:\n            yield kind(chunk=payload[:5])",
    ),
    Mutant(
        "empty-messages",
        "a message has at least one part",
        "commit-large",
        "WRONG_CHUNK",
        "        yield kind(chunk=payload[start : start + CHUNK_BYTES])",
        "        yield kind()\n        yield kind(chunk=payload[start : start + CHUNK_BYTES])",
    ),
    Mutant(
        "half-closes-in-the-middle",
        "a stream ends after a footer",
        "commit-large",
        "OUT_OF_ORDER",
        "                        requests.put(message)",
        "                        requests.put(None)",
    ),
    Mutant(
        "big-endian",
        "values are little-endian",
        "commit-small",
        "WRONG_VALUES",
        'return values.astype("<f4").tobytes()',
        'return values.astype(">f4").tobytes()',
    ),
    Mutant(
        "truncates-bfloat16",
        "bfloat16 rounds half to even",
        "delta-bfloat16",
        "TRUNCATING_BFLOAT16",
        "((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)",
        "(bits >> 16)",
    ),
    Mutant(
        "rounds-bfloat16-half-up",
        "bfloat16 rounds half to even",
        "delta-bfloat16",
        "WRONG_VALUES",
        "0x7FFF + (bits >> 16 & 1)",
        "0x8000",
    ),
    # --- commits
    Mutant(
        "data-before-proceed",
        "chunks wait for proceed",
        "commit-large",
        "DATA_BEFORE_PROCEED",
        "                    if next_of(stream).proceed.sequence != header.sequence:\n"
        '                        raise TornError("another answer than proceed")\n',
        "",
    ),
    Mutant(
        "large-payload-whole",
        "only payloads of at most 64 KiB travel whole",
        "commit-large",
        "DATA_BEFORE_PROCEED",
        "if len(payload) <= WHOLE_BYTES:",
        "if True:",
    ),
    Mutant(
        "header-again-after-proceed",
        "after proceed come chunks only",
        "commit-large",
        "OUT_OF_ORDER",
        "                    for message in messages:\n                        requests.put(message)",
        "                    for message in [whole, *messages]:\n                        requests.put(message)",
    ),
    Mutant(
        "sequence-from-zero",
        "the first sequence is last_applied_sequence + 1",
        "pull",
        "WRONG_SEQUENCE",
        "sequence=self.sequence + 1",
        "sequence=self.sequence",
    ),
    Mutant(
        "counts-its-own-sequences",
        "Join returns the last applied sequence",
        "sequence-gap",
        "WRONG_SEQUENCE",
        "self.sequence = joined.last_applied_sequence",
        'self.sequence = getattr(self, "sequence", joined.last_applied_sequence)',
    ),
    Mutant(
        "version-of-the-verdict",
        "the base version is that of the parameters",
        "reply-of-others",
        "STALE_BASE",
        "        self.base = header.version",
        '        self.base = header.version\n        self.base.clock -= 2 * (header_name == "parameters")',
    ),
    Mutant(
        "base-before",
        "the base version is the newest one",
        "commit-small",
        "STALE_BASE",
        "        self.base = header.version",
        '        self.base, self.last = getattr(self, "last", header.version), header.version',
    ),
    Mutant(
        "another-session-in-commits",
        "the session id is the same in each call",
        "pull",
        "WRONG_SESSION",
        "session_id=self.session_id,\n            sequence",
        "session_id=bytes(range(16)),\n            sequence",
    ),
    Mutant(
        "float32-in-the-header",
        "the wire type is what Join settled",
        "delta-bfloat16",
        "WRONG_WIRE_TYPE",
        "wire_type=self.wire_type,\n",
        "wire_type=1,\n",
    ),
    Mutant(
        "ascends",
        "delta = -eta * gradient",
        "pull",
        "WRONG_VALUES",
        "delta = np.float32(-self.eta) * self.theta",
        "delta = np.float32(self.eta) * self.theta",
    ),
    Mutant(
        "gradients-without-scale",
        "gradients are sent with scale = -eta",
        "pull",
        "WRONG_VALUES",
        "delta = np.float32(-self.eta) * self.theta",
        "delta = self.theta",
    ),
    Mutant(
        "eta-of-the-settings",
        "the learning rate is next_eta",
        "pull",
        "IGNORED_ETA",
        "        self.learn(joined)\n",
        "        self.learn(joined)\n        self.eta = joined.settings.eta\n",
    ),
    Mutant(
        "eta-of-the-first-join",
        "each verdict brings the next learning rate",
        "next-eta",
        "IGNORED_ETA",
        "self.eta, self.finished = news.next_eta, ",
        'self.eta, self.finished = getattr(self, "eta", news.next_eta), ',
    ),
    Mutant(
        "eta-of-verdicts-alone",
        "Join's answer brings the next learning rate, too",
        "next-eta",
        "IGNORED_ETA",
        "        self.learn(joined)\n",
        '        before = getattr(self, "eta", joined.next_eta)\n        self.learn(joined)\n'
        "        self.eta = before\n",
    ),
    Mutant(
        "buffers-of-the-pull-alone",
        "BUFFERs come with each reply",
        "reply-of-others",
        "WRONG_BUFFERS",
        "bytes(payload[middle:])",
        'self.buffers if header_name == "parameters" else bytes(payload[middle:])',
    ),
    Mutant(
        "zeros-in-buffers",
        "BUFFERs are committed as they came",
        "buffers-frozen",
        "WRONG_BUFFERS",
        "bytes(payload[middle:])",
        "bytes(len(self.buffers))",
    ),
    Mutant(
        "frozen-in-payloads",
        "FROZEN tensors never travel",
        "buffers-frozen",
        "WRONG_SIZE",
        "payload = encode(self.wire_type, delta) + self.buffers",
        "payload = encode(self.wire_type, delta) + self.buffers + bytes(33)",
    ),
    Mutant(
        "local-steps-in-the-header",
        "local_steps is that of the run",
        "pull",
        "IGNORED_LOCAL_STEPS",
        "samples=1,",
        "samples=1, local_steps=8,",
    ),
    Mutant(
        "endless-samples",
        "samples are at most 2^32",
        "pull",
        "MALFORMED",
        "samples=1,",
        "samples=1 << 33,",
    ),
    # --- what is received
    Mutant(
        "no-checksum-of-parameters",
        "parameters whose footer does not match are not used",
        "bad-parameters",
        "UNFINISHED_PARAMETERS",
        "footer.crc32c != google_crc32c.value(bytes(payload)) or ",
        "",
    ),
    Mutant(
        "end-of-a-stream-is-a-footer",
        "a transfer that ends without a footer is incomplete",
        "pull-ended",
        "UNFINISHED_PARAMETERS",
        "            message = next_of(stream)\n",
        "            message = next(stream, None)\n"
        "            if message is None:\n"
        "                payload += bytes(header.byte_count - len(payload))\n"
        "                footer = transfer_pb2.Footer(crc32c=google_crc32c.value(bytes(payload)))\n"
        "                break\n",
    ),
    Mutant(
        "ignores-the-digest",
        "parameters with another digest belong to another model",
        "wrong-digest",
        "WRONG_DIGEST",
        "if header.layout_digest != self.digest:",
        "if False:",
    ),
    Mutant(
        "computes-its-own-digest",
        "the digest is the one that Join returns",
        "run-digest",
        "STOPPED",
        "joined.delta_wire_type, joined.layout_digest",
        "joined.delta_wire_type, "
        '__import__("gem_conformance.layouts", fromlist="a").layout_from(request.layout).digest',
    ),
    # --- the one rule
    Mutant(
        "next-sequence-without-the-one-rule",
        "a delta whose outcome is unknown keeps its sequence",
        "dropped-reply",
        "NEW_SEQUENCE_ON_RETRY",
        "                self.join()\n",
        "                if self.pause > 0.1:\n                    self.sequence += 1\n"
        "                    self.commits()\n"
        "                self.join()\n",
    ),
    Mutant(
        "repeats-without-checksum",
        "a repeat has payload_crc32c",
        "dropped-reply",
        "NO_CHECKSUM_IN_REPEAT",
        "                self.join()\n",
        "                if self.pause > 0.1:\n                    self.commits()\n                self.join()\n",
    ),
    Mutant(
        "repeats-other-bytes",
        "a repeat has the same bytes",
        "dropped-reply",
        "OTHER_BYTES_ON_RETRY",
        "                self.join()\n",
        "                if self.pause > 0.1:\n                    self.theta = 2 * self.theta\n"
        "                    self.commits()\n                self.join()\n",
        (("samples=1,", "payload_crc32c=google_crc32c.value(payload),"),),
    ),
    Mutant(
        "no-join-after-a-restart",
        "after a failure Join comes first",
        "restart",
        "NO_PROGRESS",
        "                self.join()\n",
        '                if not hasattr(self, "digest"):\n                    self.join()\n'
        "                self.pause = 0.01\n",
    ),
    Mutant(
        "no-pull-after-a-failure",
        "after a failure Pull comes before the next commit",
        "restart",
        "STALE_BASE",
        "                    self.receive(self.server.Pull",
        '                    hasattr(self, "base") or self.receive(self.server.Pull',
    ),
    Mutant(
        "old-delta-on-new-parameters",
        "after a Pull the delta is a new one",
        "expired-session",
        "STALE_DELTA",
        "        self.base = header.version",
        '        self.base = header.version\n        if header_name == "header" and self.pause > 0.1:\n'
        "            self.theta = self.kept\n        self.kept = self.theta",
    ),
    Mutant(
        "no-back-off",
        "a worker waits after failures",
        "back-off",
        "NO_BACK_OFF",
        "return self.pause / 2 * random.uniform(0.5, 1)",
        "return 0",
    ),
    Mutant(
        "constant-back-off",
        "the wait doubles",
        "back-off",
        "NO_BACK_OFF",
        "self.pause = min(2 * self.pause, 4)",
        "self.pause = 0.2",
    ),
    Mutant(
        "ignores-retry-info",
        "RetryInfo says how long to wait",
        "retry-info",
        "IGNORED_RETRY_INFO",
        "return delay * random.uniform(1, 1.2)",
        "return 0",
    ),
    Mutant(
        "half-of-retry-info",
        "a worker waits at least for RetryInfo's delay",
        "retry-info",
        "IGNORED_RETRY_INFO",
        "return delay * random.uniform(1, 1.2)",
        "return delay * random.uniform(0.4, 0.6)",
    ),
    Mutant(
        "retries-bugs",
        "a reason that errors.proto does not name is a bug: the worker ends",
        "no-retry",
        "RETRIED_WITHOUT_RETRY_INFO",
        "if reason not in RULE_REASONS and (reason or code not in TRANSPORT_CODES):",
        "if False:",
    ),
    Mutant(
        "takes-unknown-reasons-for-waits",
        "an unknown reason without RetryInfo is a bug",
        "unknown-bug",
        "RETRIED_WITHOUT_RETRY_INFO",
        "if reason not in RULE_REASONS and",
        'if reason not in (*RULE_REASONS, "NEW") and',
    ),
    Mutant(
        "takes-the-reason-internal-for-a-broken-stream",
        "INTERNAL with ErrorInfo is a bug of the server",
        "server-bug",
        "RETRIED_WITHOUT_RETRY_INFO",
        "(reason or code not in TRANSPORT_CODES)",
        "code not in TRANSPORT_CODES",
    ),
    Mutant(
        "ends-bugs-with-2",
        "status 2 says that a refusal was final",
        "no-retry",
        "WRONG_EXIT",
        "BUG, FINAL, NOT_SPOKEN, INTERRUPTED = 1,",
        "BUG, FINAL, NOT_SPOKEN, INTERRUPTED = 2,",
    ),
    Mutant(
        "ends-bugs-with-0",
        "a bug ends with a status other than 0",
        "no-retry",
        "WRONG_EXIT",
        "BUG, FINAL, NOT_SPOKEN, INTERRUPTED = 1,",
        "BUG, FINAL, NOT_SPOKEN, INTERRUPTED = 0,",
    ),
    Mutant(
        "final-with-status-1",
        "a final refusal ends with status 2",
        "final-layout-mismatch",
        "WRONG_EXIT",
        "BUG, FINAL, NOT_SPOKEN, INTERRUPTED = 1, 2",
        "BUG, FINAL, NOT_SPOKEN, INTERRUPTED = 1, 1",
    ),
    Mutant(
        "retries-final-refusals",
        "after a final refusal the worker ends",
        "newer-session",
        "IGNORED_FINAL",
        "        if final:\n            stop(FINAL, error)\n",
        "        if final:\n            return 0.1\n",
    ),
    Mutant(
        "knows-final-reasons-by-name",
        "the metadata says whether a refusal is final",
        "unknown-final",
        "WRONG_EXIT",
        'info.metadata.get("final") == "true"',
        'info.reason in ("CREDENTIALS", "NEWER_SESSION")',
    ),
    Mutant(
        "newer-session-is-a-newer-call",
        "NEWER_SESSION means that another process has the name",
        "newer-session",
        "IGNORED_FINAL",
        'info.reason, info.metadata.get("final") == "true"',
        'info.reason.replace("NEWER_SESSION", "NEWER_CALL"), False',
    ),
    Mutant(
        "stops-at-newer-call",
        "NEWER_CALL is followed by the one rule",
        "newer-call",
        "STOPPED",
        '("SEQUENCE_GAP", "NOT_INITIALIZED", "NEWER_CALL", ',
        '("SEQUENCE_GAP", "NOT_INITIALIZED", ',
    ),
    Mutant(
        "stops-at-cancelled",
        "CANCELLED without ErrorInfo is a broken stream",
        "cancelled",
        "STOPPED",
        '("UNAVAILABLE", "CANCELLED", ',
        '("UNAVAILABLE", ',
    ),
    Mutant(
        "stops-at-internal",
        "INTERNAL without ErrorInfo is a broken stream",
        "internal",
        "STOPPED",
        '"DEADLINE_EXCEEDED", "INTERNAL")',
        '"DEADLINE_EXCEEDED")',
    ),
    Mutant(
        "repeats-bad-values",
        "a delta that was refused for its values is not sent again",
        "bad-value",
        "REPEATED_DELTA",
        "                self.join()\n",
        "                if self.pause > 0.1:\n                    self.commits()\n                self.join()\n",
    ),
    Mutant(
        "stops-at-a-checksum",
        "CHECKSUM is followed by the one rule",
        "checksum",
        "STOPPED",
        "        if self.damaged > 5:",
        "        if self.damaged:",
    ),
    Mutant(
        "retries-checksum-refusals-for-ever",
        "after more than five CHECKSUM refusals in a row a worker ends",
        "checksum-always",
        "RETRIED_TOO_OFTEN",
        "self.damaged > 5",
        "self.damaged > 50",
    ),
    Mutant(
        "stops-without-parameters",
        "NOT_INITIALIZED is followed by the one rule",
        "not-initialised",
        "STOPPED",
        '"NOT_INITIALIZED", ',
        "",
    ),
    Mutant(
        "stops-at-unknown-waits",
        "after an unknown reason with RetryInfo a worker waits",
        "unknown-wait",
        "STOPPED",
        "        if delay is not None:",
        '        if delay is not None and reason != "NEW":',
    ),
    Mutant(
        "waits-for-another-server",
        "UNIMPLEMENTED without ErrorInfo comes from a server of another kind",
        "no-gemps",
        "RETRIED_WITHOUT_RETRY_INFO",
        '("UNAVAILABLE", "CANCELLED", ',
        '("UNAVAILABLE", "UNIMPLEMENTED", "CANCELLED", ',
    ),
    # --- the end
    Mutant(
        "commits-after-finished",
        "after FINISHED in a verdict a worker leaves",
        "finished",
        "IGNORED_FINISHED",
        "news.run_state == run_pb2.RUN_STATE_FINISHED",
        "False",
    ),
    Mutant(
        "joins-a-finished-run",
        "after FINISHED in Join's answer a worker leaves",
        "finished-before",
        "IGNORED_FINISHED",
        "        self.learn(joined)\n",
        "        self.learn(joined)\n        self.finished = False\n",
    ),
    Mutant(
        "run-finished-is-a-bug",
        "after RUN_FINISHED a worker leaves",
        "finished-refused",
        "WRONG_EXIT",
        'if reason == "RUN_FINISHED":',
        "if False:",
    ),
    Mutant(
        "commits-after-run-finished",
        "after RUN_FINISHED a worker leaves",
        "finished-refused",
        "IGNORED_FINISHED",
        "            self.finished = True\n            return 0",
        "            self.learn = lambda news: None\n            return 0",
    ),
    Mutant(
        "no-leave",
        "a worker calls Leave before it ends",
        "finished",
        "NO_LEAVE",
        "self.server.Leave(",
        "0 and self.server.Leave(",
    ),
    Mutant(
        "status-1-at-the-end",
        "at the end of a run a worker exits with 0",
        "finished",
        "WRONG_EXIT",
        "return 0 if self.finished else INTERRUPTED",
        "return 1",
    ),
    Mutant(
        "stays-after-leave",
        "after Leave the process ends",
        "finished",
        "NOT_ENDED",
        "return 0 if self.finished else INTERRUPTED",
        "time.sleep(60)",
    ),
    Mutant(
        "leaves-early",
        "a worker stays until the run is finished",
        "commit-small",
        "LEFT_EARLY",
        "                self.pause, self.damaged = 0.1, 0\n",
        "                self.pause, self.damaged, self.finished = 0.1, 0, True\n",
    ),
    Mutant(
        "ends-at-once-on-sigterm",
        "after SIGTERM a worker leaves",
        "interrupted",
        "NO_LEAVE",
        "signal.signal(signal.SIGTERM, worker.interrupt)",
        "pass",
    ),
    Mutant(
        "ignores-sigterm",
        "after SIGTERM a worker ends",
        "interrupted",
        "IGNORED_SIGTERM",
        "        self.interrupted = True",
        "        pass",
    ),
    Mutant(
        "finished-by-sigterm",
        "Leave has the reason why the worker leaves",
        "interrupted",
        "WRONG_LEAVE_REASON",
        '"finished" if self.finished else "interrupted"',
        '"finished"',
    ),
]

# Edits of optional_worker.py.
OPTIONAL_MUTANTS = [
    Mutant(
        "forgets-what-was-left-out",
        "what a lossy delta leaves out is added to the next",
        "delta-int4-block",
        "WRONG_LEFT_OUT",
        "self.residual = due - decode_int4(data, due.size)",
        "pass",
    ),
    Mutant(
        "forgets-what-dropped-deltas-left-out",
        "what a dropped delta leaves out is added to the next, too",
        "dropped-int4-block",
        "WRONG_LEFT_OUT",
        "self.residual = due - decode_int4(data, due.size)",
        "self.pending = due - decode_int4(data, due.size)",
        (
            (
                "                self.pause, self.damaged = 0.1, 0\n",
                "                self.pause, self.damaged, self.residual = 0.1, 0, self.pending\n",
            ),
            ("early_sequence, residual,", "pending = np.float32(0)\n    early_sequence, residual,"),
        ),
    ),
    Mutant(
        "truncates-int4",
        "INT4_BLOCK rounds half to even",
        "delta-int4-block",
        "WRONG_VALUES",
        "np.rint(quotients)",
        "np.trunc(quotients)",
    ),
    Mutant(
        "takes-an-early-proceed-to-another-stream",
        "an early proceed belongs to its stream",
        "early-proceed-torn",
        "DATA_BEFORE_PROCEED",
        "self.joined, self.early_sequence, settings = news, 0, news.settings",
        "self.joined, settings = news, news.settings",
    ),
    Mutant(
        "sums-local-steps-instead-of-the-mean",
        "normalise_local_steps asks for the mean",
        "local-steps-mean",
        "IGNORED_LOCAL_STEPS",
        "self.divisor = self.steps if settings.normalise_local_steps else 1",
        "self.divisor = 1",
    ),
    Mutant(
        "ignores-local-rate",
        "local_rate scales local steps",
        "local-steps-rate",
        "IGNORED_LOCAL_STEPS",
        "self.rate = settings.local_rate",
        "self.rate = 1",
    ),
    Mutant(
        "other-magic",
        "HELLO contains the magic bytes of the lane",
        "lane",
        "WRONG_FRAME",
        'b"gemps-lane"',
        'b"gemps-line"',
    ),
    Mutant(
        "commits-before-hello",
        "the first frame is HELLO",
        "lane",
        "WRONG_FRAME",
        "HELLO, WELCOME, MESSAGE, END = 1, 2, 3, 4",
        "HELLO, WELCOME, MESSAGE, END = 3, 2, 3, 4",
    ),
    Mutant(
        "stops-without-the-lane",
        "a worker that cannot use the lane commits over gRPC",
        "lane-refused",
        "STOPPED",
        "            except OSError:\n                pass\n",
        "            except OSError:\n                raise\n",
    ),
]

# Edits of examples/workers/python/reference_worker.py.
ALLOWED_VARIANTS = [
    AllowedVariant(
        "gradients-with-scale",
        ("commit-small", "commit-large", "delta-bfloat16", "next-eta"),
        "delta = np.float32(-self.eta) * self.theta",
        "delta = self.theta",
        (("samples=1,", "scale=-self.eta,"),),
    ),
    AllowedVariant(
        "header-alone-for-small-payloads",
        ("commit-small", "dropped-reply", "empty-payload"),
        "if len(payload) <= WHOLE_BYTES:",
        "if False:",
    ),
    AllowedVariant(
        "chunks-cut-within-elements",
        ("initialise", "commit-large", "buffers-first"),
        "CHUNK_BYTES = 64 * 1024, 1024 * 1024",
        "CHUNK_BYTES = 64 * 1024, 4099",
    ),
    AllowedVariant(
        "heartbeats-between-commits",
        ("commit-small", "dropped-reply"),
        "                self.pause, self.damaged = 0.1, 0\n",
        "                self.pause, self.damaged = 0.1, 0\n"
        "                self.server.Heartbeat(session_pb2.HeartbeatRequest(session_id=self.session_id))\n",
    ),
    AllowedVariant(
        "a-stream-for-each-commit",
        ("commit-large", "torn-commit"),
        "                self.pause, self.damaged = 0.1, 0\n",
        "                self.pause, self.damaged = 0.1, 0\n                return\n",
    ),
    AllowedVariant(
        "repeats-what-is-open",
        ("dropped-reply", "torn-commit", "finished-rejoin"),
        "                self.join()\n",
        "                if self.pause > 0.1:\n                    self.commits()\n                self.join()\n",
        (("samples=1,", "payload_crc32c=google_crc32c.value(payload),"),),
    ),
    AllowedVariant(
        "leaves-out-unchanged-buffers",
        ("buffers-frozen", "reply-of-others"),
        "payload = encode(self.wire_type, delta) + self.buffers",
        "payload = encode(self.wire_type, delta)",
        (("samples=1,", "buffers=transfer_pb2.BufferSelection(),"),),
    ),
]
