"""Apache Spark."""

from gem_launch.engines.spark import train as train

__all__ = ["train"]
