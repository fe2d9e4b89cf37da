"""What a script gets without any option, and what its optimizer means: the simulated study of docs/default.md."""
