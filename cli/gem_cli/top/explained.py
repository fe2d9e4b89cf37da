"""Help texts for 80 columns."""

EXPLAINED = (
    ("version", "counts the changes that were made to the parameters."),
    ("budget", "what ends the run, and how long the rest takes at the rate of now."),
    ("loss", "median of the newest losses of the workers that train."),
    ("evaluated", "accuracy and loss on held-out data, as reported last."),
    ("commits/s", "gradients that were applied in a second, over the last ten seconds."),
    ("staleness", "commits of others between a worker's pull and its commit (stale)."),
    ("pi", "the factor by which the rule scales a commit's elements: mean."),
    ("blocked", "share of elements with the least pi: others had moved them there."),
    ("clamped", "share of elements with the largest pi that is allowed."),
    ("fairness", "Jain's index while all were there: 1 is all alike, 1/n is one only."),
    ("queue", "commits and pulls ready to be served; calls waiting for a buffer."),
    ("memory", "what the server has promised to workers, of what it may."),
    ("eta", "the learning rate that workers use next."),
    ("p50, p99", "half (99 %) of the commits waited less than this to be applied."),
    ("seen", "how long ago the server heard of the worker."),
    ("SILENT", "not heard of for 10 s: it computes for long, hangs or is cut off."),
    ("GONE", "its session expired without a word: killed, or cut off for long."),
    ("MUTED", "hardly anything of its last commits was applied: it comes too late."),
    ("SLOW", "it commits less than half as often as the median worker."),
    ("by trouble", "workers that are marked stand above; s takes the next order."),
)
