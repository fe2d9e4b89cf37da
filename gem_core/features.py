"""Names of what a worker may be able to do; it announces them when it joins (session.proto)."""

LOCAL_STEPS = "local-steps"
SCALED_LOCAL_STEPS = "scaled-local-steps"
CLIP_NORM = "clip-norm"
RECIPE = "recipe"
DIFFERENCES = "differences"
SHARDS = "shards"
EARLY_PROCEED = "early-proceed"


def direction_feature(direction: str) -> str:
    """The feature that RunSettings.direction needs, such as "direction-rms"."""
    return f"direction-{direction}"
