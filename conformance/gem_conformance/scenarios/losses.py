"""Scenarios in which streams break, and servers or workers are killed: the worker follows the one rule."""

from gem_conformance.refusals import CANCELLED, INTERNAL
from gem_conformance.scenarios import steps as do
from gem_conformance.scenarios.scenario import BEGIN, END, LARGE, Scenario

__all__ = ["SCENARIOS"]

# fmt: off
SCENARIOS = (
    Scenario("torn-commit", "the stream breaks within a payload, which is not applied: the worker follows the one rule",
        (*BEGIN, do.await_header(), do.send_proceed(), do.await_chunks(1), do.break_stream(), *END), LARGE),
    Scenario("dropped-reply", "the verdict of an applied commit is lost: the worker does not commit its delta again", (
        *BEGIN, do.apply_commit(), do.break_stream(), *END)),
    Scenario("applied-late", "the stream breaks after the footer, and the commit is applied when the worker joins", (
        *BEGIN, do.await_header(), do.await_payload(), do.break_stream(applied_late=True), *END), LARGE),
    Scenario("torn-reply", "the reply breaks within its parameters: the worker does not use them", (
        *BEGIN, do.apply_commit(), do.send_reply(break_after=3), *END), LARGE),
    Scenario("reply-ended", "the stream ends with OK within a reply's parameters: the reply is incomplete all the same",
        (*BEGIN, do.apply_commit(), do.send_reply(break_after=2, ending=None), *END), LARGE),
    Scenario("commit-ended", "the stream ends with OK before the verdict: the outcome is unknown all the same", (
        *BEGIN, do.await_header(), do.await_payload(), do.break_stream(None), *END)),
    Scenario("cancelled", "the stream ends with CANCELLED without ErrorInfo: the worker follows the one rule", (
        *BEGIN, do.await_header(), do.break_stream(CANCELLED), *END)),
    Scenario("internal", "the stream ends with INTERNAL without ErrorInfo: the worker follows the one rule", (
        *BEGIN, do.await_header(), do.break_stream(INTERNAL), *END)),
    Scenario("restart", "the server restarts on the same port, and has lost a commit", (
        *BEGIN, do.commit(), do.await_header(), do.restart_server(lost=1), *END)),
    Scenario("restart-empty", "the server restarts without parameters: the worker joins, initializes and pulls", (
        *BEGIN, do.restart_server(lost=1, without_parameters=True), do.await_first_parameters(again=True), *END)),
    Scenario("killed-worker", "the worker is killed and started again: it has a new session id, and sequences from 1", (
        *BEGIN, do.restart_worker(), *END), needs_process=True),
)
