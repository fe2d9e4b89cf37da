"""`gemps top`: a run's dashboard in a terminal."""
