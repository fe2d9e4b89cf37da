import sys
from pathlib import Path

# The benchmarks are scripts beside packages of their own, and their folder is on the path when they run.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
