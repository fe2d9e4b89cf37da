"""Broken streams, lost sessions and servers: the one rule."""

from gem_conformance.refusals import CANCELLED, INTERNAL
from gem_conformance.scenarios import steps as do
from gem_conformance.scenarios.scenario import BEGIN, END, LARGE, Scenario

__all__ = ["SCENARIOS"]

# fmt: off
SCENARIOS = (
    Scenario("torn-commit", "the stream breaks in a payload: nothing was applied", (
        *BEGIN, do.header(), do.proceed(), do.chunks(1), do.tear(), *END), LARGE),
    Scenario("dropped-reply", "applied, and the verdict is lost: not a second time", (
        *BEGIN, do.header(), do.payload(), do.apply(), do.tear(), *END)),
    Scenario("applied-late", "the stream breaks behind the footer, and Join waits until the commit is applied", (
        *BEGIN, do.header(), do.payload(), do.tear(applied_late=True), *END), LARGE),
    Scenario("torn-reply", "the reply breaks in its parameters", (
        *BEGIN, do.header(), do.payload(), do.apply(), do.reply(tear_after=3), *END), LARGE),
    Scenario("reply-ended", "the reply's stream ends with OK in its parameters: that is no end", (
        *BEGIN, do.header(), do.payload(), do.apply(), do.reply(tear_after=2, torn=None), *END), LARGE),
    Scenario("commit-ended", "the stream ends with OK before the verdict: that is no end", (
        *BEGIN, do.header(), do.payload(), do.tear(None), *END)),
    Scenario("cancelled", "the stream ends with CANCELLED, without ErrorInfo", (
        *BEGIN, do.header(), do.tear(CANCELLED), *END)),
    Scenario("internal", "the stream ends with INTERNAL, without ErrorInfo", (
        *BEGIN, do.header(), do.tear(INTERNAL), *END)),
    Scenario("restart", "another incarnation on the same port, which lacks a commit", (
        *BEGIN, do.commit(), do.header(), do.restart(lost=1), *END)),
    Scenario("restart-empty", "another incarnation without parameters: Join, Initialize, Pull", (
        *BEGIN, do.restart(lost=1, without_parameters=True), do.initialise(again=True), *END)),
    Scenario("killed-worker", "the worker is killed, and started again: a new session id, sequences from 1", (
        *BEGIN, do.restart_worker(), *END), needs_process=True),
)
