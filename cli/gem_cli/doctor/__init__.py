"""`gemps doctor`: checks with fixes."""
