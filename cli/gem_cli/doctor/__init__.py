"""`gemps doctor`: what is wrong with a set-up, check by check, each with its fix."""
