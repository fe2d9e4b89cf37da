"""The paper's figures as declared experiments; see DESIGN.md.

Hermans and Louppe, 2018, arXiv 1805.08469.
"""
