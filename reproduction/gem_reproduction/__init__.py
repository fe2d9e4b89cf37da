"""The figures of the paper as declared experiments: runs, a picture, and a verdict on what the paper claims.

Hermans and Louppe, 2018, arXiv 1805.08469. Runs are gem_simulator's, on a virtual clock. `DESIGN.md` beside this file
says how a run is found again, what is kept of it, and what counts as a loss.
"""
