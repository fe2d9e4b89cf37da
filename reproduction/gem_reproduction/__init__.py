"""The paper's figures as declared experiments.

Hermans and Louppe, 2018, arXiv 1805.08469.
"""
