"""Names of features, which are what a worker can do, and announces when it joins (session.proto)."""

LOCAL_STEPS = "local-steps"
SCALED_LOCAL_STEPS = "scaled-local-steps"
CLIP_NORM = "clip-norm"
RECIPE = "recipe"
DIFFERENCES = "differences"
SHARDS = "shards"
EARLY_PROCEED = "early-proceed"


def direction_feature(direction: str) -> str:
    """Return the feature that a worker needs for a direction, such as "direction-rms"."""
    return f"direction-{direction}"
